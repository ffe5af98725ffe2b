package io.edgealbert

import io.edgealbert.engine.Engines
import io.edgealbert.engine.TfliteEngine
import java.io.File
import org.json.JSONArray
import org.json.JSONObject
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** A bundle whose texts leave early: both engines answer what Python said of the iteration where each left. */
class EarlyExitTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val rows = TestData.objects(TestData.vectors(NAME) as JSONArray)

    @Test
    fun onnxLogitsArePythons() = Session.open(TestData.tinyBundle(folder, NAME), threads = 1).use { session ->
        assertTrue(session.engineVersion, session.engineVersion.startsWith("ONNX Runtime"))
        compare { session.run(session.encode(it, truncate = true)) }
    }

    @Test
    fun tfliteLogitsArePythons() {
        TestData.assumeDesktopTflite()
        Session.open(TestData.tinyBundle(folder, NAME), threads = 1).use { session ->
            TfliteEngine(session.bundle.modelFile("tflite"), 1, session.bundle.exits).use { engine ->
                compare {
                    val encoding = session.encode(it, truncate = true)
                    engine.run(encoding.inputIds, encoding.tokenTypeIds)
                }
            }
        }
    }

    @Test
    fun inputsThatNobodyFeedsAreRefused() {
        val model = File(TestData.tinyBundle(folder, NAME), "model.tflite")
        val error = assertThrows(EngineException::class.java) { TfliteEngine(model, 1) }
        assertTrue(error.message, error.message!!.contains("5 inputs, expected 3"))
    }

    @Test
    fun aFileForANewerEngineIsRefused() {
        val copy = TestData.tinyBundle(folder, "text-classification-tflite")
        TestData.edit(copy) { manifest: JSONObject ->
            manifest.getJSONObject("models").getJSONObject("tflite").put("needs", "ai-edge-litert>=2.1")
        }
        val error = assertThrows(EngineException::class.java) { Engines.open(Bundle.open(copy)) }
        assertTrue(error.message, error.message!!.contains("needs ai-edge-litert>=2.1"))
    }

    private fun compare(run: (String) -> FloatArray) {
        assertTrue(rows.map { it.getInt("iterations") }.toSet().size >= 3)
        for (row in rows) {
            val logits = TestData.floats(row.getJSONArray("logits"))
            assertArrayEquals(row.getString("text"), logits, run(row.getString("text")), TOLERANCE)
        }
    }

    private companion object {
        const val NAME = "text-classification-early-exit"
        const val TOLERANCE = 1e-4f
    }
}

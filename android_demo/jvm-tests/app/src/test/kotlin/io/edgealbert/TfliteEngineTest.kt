package io.edgealbert

import org.json.JSONArray
import org.json.JSONObject
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/**
 * The second engine: a tiny float32 model made with --tflite-compat, on a desktop build of TensorFlow Lite (see
 * src/test/java/org/tensorflow/lite), against what Python's LiteRT says of the same file.
 */
class TfliteEngineTest {
    @get:Rule
    val folder = TemporaryFolder()

    private lateinit var session: Session

    @Before
    fun open() {
        TestData.assumeDesktopTflite()
        session = Session.open(TestData.tinyBundle(folder, TASK), threads = 1)
    }

    @After
    fun close() {
        if (::session.isInitialized) session.close()
    }

    @Test
    fun logitsArePythonsAtEveryLength() {
        val rows = TestData.objects(TestData.vectors(TASK) as JSONArray)
        assertTrue(rows.size >= 50)
        assertTrue(session.engineVersion, session.engineVersion.startsWith("TensorFlow Lite 2."))
        for (row in rows) {
            val logits = TestData.floats(row.getJSONArray("logits"))
            val encoding = session.encode(row.getString("text"), truncate = true)
            assertArrayEquals(row.getString("text"), logits, session.run(encoding), TOLERANCE)
        }
    }

    @Test
    fun threadsWaitForEachOther() {
        val texts = listOf("win a free phone", "see you at home", "a", "call ".repeat(80))
        val alone = texts.map { session.run(session.encode(it, truncate = true)).toList() }
        val results = arrayOfNulls<List<List<Float>>>(8)
        val threads = List(results.size) { i ->
            Thread { results[i] = texts.map { session.run(session.encode(it, truncate = true)).toList() } }
        }
        threads.forEach(Thread::start)
        threads.forEach(Thread::join)
        for (result in results) assertEquals(alone, result)
    }

    @Test
    fun closingTwiceIsFineAndRunningAfterwardsIsNot() {
        val encoding = session.encode("hello there")
        session.close()
        session.close()
        assertThrows(EngineException::class.java) { session.run(encoding) }
    }

    @Test
    fun aFileThatIsNoModelIsRefused() {
        val copy = TestData.tinyBundle(folder, TASK)
        TestData.replace(copy, "model.tflite", "not a model".toByteArray())
        val error = assertThrows(EngineException::class.java) { Session.open(copy) }
        assertTrue(error.message, error.message!!.contains("model.tflite"))
    }

    @Test
    fun theBenchmarkRunsOnIt() {
        val json: JSONObject = Benchmark.run(session, listOf(4, 16), runs = 2).toJson()
        assertEquals(2, json.getJSONArray("timings").length())
    }

    private companion object {
        const val TASK = "text-classification-tflite"
        const val TOLERANCE = 1e-4f
    }
}

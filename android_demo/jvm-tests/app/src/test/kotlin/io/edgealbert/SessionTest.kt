package io.edgealbert

import io.edgealbert.engine.Engines
import io.edgealbert.tasks.TextClassifier
import java.io.File
import java.util.concurrent.Callable
import java.util.concurrent.Executors
import kotlin.math.exp
import org.json.JSONObject
import org.junit.After
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The exported model on ONNX Runtime, against what Python's runtime said. */
class SessionTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val session = Session.open(TestData.bundle, threads = 1)
    private val vectors = TestData.vectors("classifier") as JSONObject
    private val texts = vectors.getJSONArray("texts").let { array -> List(array.length(), array::getString) }
    private val logits = vectors.getJSONArray("logits").let { rows ->
        List(rows.length()) { i ->
            val row = rows.getJSONArray(i)
            TestData.floats(row)
        }
    }

    @After
    fun close() = session.close()

    @Test
    fun logitsAndLabelsArePythonsOn500Texts() {
        val hash = session.bundle.manifest.getJSONObject(
            "files"
        ).getJSONObject("model.onnx").getString("sha256")
        assertEquals("run scripts/make_test_vectors.py", vectors.getString("model_sha256"), hash)
        assertEquals(500, texts.size)
        val classifier = TextClassifier(session)
        texts.forEachIndexed { i, text ->
            val encoding = session.encode(text, truncate = true)
            assertArrayEquals(text, logits[i], session.run(encoding), TestData.logitTolerance)
            val (best, second) = logits[i].indices.sortedByDescending { logits[i][it] }
            if (logits[i][best] - logits[i][second] < 2 * TestData.logitTolerance) return@forEachIndexed
            assertEquals(text, session.bundle.labels[best], classifier.classify(encoding).first().label)
        }
    }

    @Test
    fun goldenLogitsAndIds() {
        val golden = JSONObject(File(TestData.bundle, "golden.json").readText())
        val examples = TestData.objects(golden.getJSONArray("examples"))
        val expected = golden.getJSONObject("outputs").getJSONArray("onnx")
        val tolerance = golden.getJSONObject("tolerance").getDouble("onnx").toFloat()
        examples.forEachIndexed { i, example ->
            val pair = if (example.isNull("pair")) null else example.getString("pair")
            val encoding = session.encode(example.getString("text"), pair, truncate = true)
            val ids = example.getJSONArray("input_ids")
            assertEquals(List(ids.length(), ids::getInt), encoding.inputIds.toList())
            val row = expected.getJSONArray(i)
            val values = TestData.floats(row)
            assertArrayEquals(values, session.run(encoding), tolerance)
        }
    }

    @Test
    fun scoresAreTheSoftmax() {
        val labels = TextClassifier(session).classify(texts[0])
        val row = session.run(session.encode(texts[0]))
        val sum = row.sumOf { exp(it.toDouble()) }
        assertEquals(1.0, labels.sumOf { it.score }, 1e-9)
        assertEquals(row.maxOf { exp(it.toDouble()) } / sum, labels.first().score, 1e-9)
        assertEquals(labels.sortedByDescending { it.score }, labels)
    }

    @Test
    fun eightThreadsAtOnceGetWhatOneGets() {
        val some = texts.take(40)
        val alone = some.map { session.run(session.encode(it)).toList() }
        val pool = Executors.newFixedThreadPool(8)
        try {
            val jobs = List(8) { Callable { some.map { session.run(session.encode(it)).toList() } } }
            for (result in pool.invokeAll(jobs)) assertEquals(alone, result.get())
        } finally {
            pool.shutdown()
        }
    }

    @Test
    fun aLongTextAfterAShortOneAndBack() {
        val short = session.encode(texts[0])
        val first = session.run(short).toList()
        val long = session.encode("win a free phone now ".repeat(400), truncate = true)
        assertEquals(session.maxLength, long.size)
        session.run(long)
        assertEquals(first, session.run(short).toList())
    }

    @Test
    fun closingTwiceIsFineAndRunningAfterwardsIsNot() {
        val other = Session.open(TestData.bundle)
        val encoding = other.encode(texts[0])
        other.close()
        other.close()
        val error = assertThrows(EngineException::class.java) { other.run(encoding) }
        assertTrue(error.message, error.message!!.contains("closed"))
    }

    @Test
    fun closingWhileOthersRunIsAnErrorAndNoCrash() {
        val other = Session.open(TestData.bundle, threads = 1)
        val encoding = other.encode("free phone ".repeat(300), truncate = true)
        val pool = Executors.newFixedThreadPool(4)
        try {
            val jobs = List(4) {
                pool.submit(
                    Callable {
                        runCatching { while (true) other.run(encoding) }.exceptionOrNull()
                    }
                )
            }
            Thread.sleep(50)
            other.close()
            for (job in jobs) assertTrue(job.get() is EngineException)
        } finally {
            pool.shutdown()
        }
    }

    @Test
    fun textsThatCannotBeAnswered() {
        assertInput("empty") { session.encode("") }
        assertInput("empty") { session.encode(" \n\u00A0\u3000") }
        assertInput("empty") { session.encode(texts[0], " ") }
        assertInput("vocabulary") { session.encode("🫠🫠 🫠") }
        assertInput("tokens") { session.encode("too long ".repeat(600)) }
    }

    private fun assertInput(message: String, encode: () -> Unit) {
        val error = assertThrows(InputException::class.java) { encode() }
        assertTrue(error.message, error.message!!.contains(message))
    }

    @Test
    fun aTaskThatIsNotTheModelsIsRefused() {
        val copy = TestData.copy(folder)
        TestData.edit(copy) { it.put("task", "poetry") }
        Session.open(copy).use { other ->
            val error = assertThrows(BundleException::class.java) { TextClassifier(other) }
            assertTrue(error.message, error.message!!.contains("poetry"))
        }
    }

    @Test
    fun aVocabularyOfAnotherSizeIsRefused() {
        val copy = TestData.copy(folder)
        TestData.edit(copy) { it.getJSONObject("config").put("vocab_size", 7) }
        assertThrows(TokenizerException::class.java) { Session.open(copy) }
    }

    @Test
    fun aFileThatIsNoModelIsRefused() {
        val copy = TestData.copy(folder)
        TestData.replace(copy, "model.onnx", "not a model".toByteArray())
        val error = assertThrows(EngineException::class.java) { Session.open(copy) }
        assertTrue(error.message, error.message!!.contains("model.onnx"))
    }

    @Test
    fun aBundleOfUnknownFormatsSaysWhatItHas() {
        val copy = TestData.copy(folder)
        TestData.edit(copy) {
            it.put("models", JSONObject().put("coreml", it.getJSONObject("models").get("onnx")))
        }
        val error = assertThrows(EngineException::class.java) { Engines.open(Bundle.open(copy)) }
        assertTrue(error.message, error.message!!.contains("coreml"))
    }

    /** In a JVM of its own: a native library that is refused once stays refused. */
    @Test
    fun noNativeLibraryForTheProcessorIsSaidInOneLine() {
        val command = listOf(
            File(System.getProperty("java.home"), "bin/java").path,
            "-Dos.arch=sparc",
            "-cp",
            System.getProperty("java.class.path"),
            "io.edgealbert.OpenMain",
            TestData.bundle.path
        )
        val child = ProcessBuilder(command).redirectErrorStream(true).start()
        val output = child.inputStream.bufferedReader().readText()
        child.waitFor()
        val lines = output.lines().filter { it.startsWith("EngineException") }
        assertEquals(output, 2, lines.size)
        for (line in lines) assertTrue(line, line.contains("sparc") && line.contains("ABI"))
    }

    @Test
    fun theBenchmarkTimesEachLength() {
        val result = Benchmark.run(session, listOf(8, 32, 100_000), runs = 3)
        assertEquals(listOf(8, 32, session.maxLength), result.timings.map { it.tokens })
        assertTrue(result.timings.all { it.medianMillis > 0 && it.p90Millis >= it.medianMillis })
        val json = result.toJson()
        assertEquals(File(TestData.bundle, "model.onnx").length(), json.getLong("model_bytes"))
        assertEquals(3, json.getJSONArray("timings").getJSONObject(1).getInt("runs"))
    }
}

package io.edgealbert

import io.edgealbert.tokenizer.Encoding
import org.json.JSONArray
import org.json.JSONObject

/** Times a session's engine at a few lengths; docs/android.md says how to get it from a phone. */
object Benchmark {
    /** Tokens, special ones included: a short message, a paragraph, a page. */
    val LENGTHS = listOf(16, 128, 512)
    private const val WARM_UP = 3
    private const val NANOS_PER_MILLI = 1e6
    private const val MEDIAN = 0.5
    private const val P90 = 0.9

    /** [firstMillis]: the first run at this length, which pays for buffers; the others exclude it. */
    class Timing(
        val tokens: Int,
        val runs: Int,
        val firstMillis: Double,
        val medianMillis: Double,
        val p90Millis: Double
    )

    class Result(val task: String, val engine: String, val modelBytes: Long, val timings: List<Timing>) {
        fun toJson(): JSONObject = JSONObject()
            .put("schema", "edge_albert.android_benchmark")
            .put("schema_version", 1)
            .put("task", task)
            .put("engine", engine)
            .put("model_bytes", modelBytes)
            .put("timings", JSONArray(timings.map(::toJson)))

        private fun toJson(timing: Timing): JSONObject = JSONObject()
            .put("tokens", timing.tokens)
            .put("runs", timing.runs)
            .put("first_ms", timing.firstMillis)
            .put("median_ms", timing.medianMillis)
            .put("p90_ms", timing.p90Millis)
    }

    /** Lengths beyond what the model takes are cut to that. */
    fun run(session: Session, lengths: List<Int> = LENGTHS, runs: Int = 20): Result {
        val usable = lengths.map { it.coerceIn(2, session.maxLength) }.distinct()
        return Result(
            session.bundle.task,
            session.engineVersion,
            session.modelBytes,
            usable.map { time(session, it, runs) }
        )
    }

    private fun time(session: Session, tokens: Int, runs: Int): Timing {
        val encoding = session.tokenizer.filler(tokens)
        val first = once(session, encoding)
        repeat(WARM_UP) { session.run(encoding) }
        val millis = List(runs) { once(session, encoding) }.sorted()
        return Timing(tokens, runs, first, quantile(millis, MEDIAN), quantile(millis, P90))
    }

    private fun once(session: Session, encoding: Encoding): Double {
        val started = System.nanoTime()
        session.run(encoding)
        return (System.nanoTime() - started) / NANOS_PER_MILLI
    }

    private fun quantile(sorted: List<Double>, share: Double): Double =
        sorted[((sorted.size - 1) * share).toInt()]
}

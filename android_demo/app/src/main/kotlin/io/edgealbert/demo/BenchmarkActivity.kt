package io.edgealbert.demo

import android.app.Activity
import android.os.Build
import android.os.Bundle
import android.util.Log
import android.widget.TextView
import io.edgealbert.Benchmark
import io.edgealbert.ProcessMemory
import java.io.File
import java.util.concurrent.Future

/**
 * Times the model and shows the result; a script starts it with
 *
 *     adb shell am start -W -n io.edgealbert.demo/.BenchmarkActivity --ei runs 50 --es lengths 16,128
 *
 * and reads one line of JSON from the log (tag edge_albert, after "benchmark: "), or from
 * files/benchmark.json in the app's external folder, which needs no permission.
 */
class BenchmarkActivity : Activity() {
    private val worker get() = (application as DemoApplication).worker

    /** The work in flight, for tests to wait on. */
    internal var pending: Future<*>? = null
        private set

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.activity_benchmark)
        val runs = intent.getIntExtra("runs", DEFAULT_RUNS).coerceIn(1, MOST_RUNS)
        val lengths = lengths(intent.getStringExtra("lengths"))
        pending = worker.withSession { session ->
            val result = Benchmark.run(session, lengths, runs)
            publish(result)
            runOnUiThread { show(result) }
        }
    }

    override fun onStart() {
        super.onStart()
        worker.listener = { if (it is State.Failed) fail(it.message) }
    }

    override fun onStop() {
        worker.listener = null
        super.onStop()
    }

    private fun fail(message: String) {
        Log.e(TAG, "benchmark failed: $message")
        findViewById<TextView>(R.id.report).text = message
    }

    private fun publish(result: Benchmark.Result) {
        val json = result.toJson()
            .put("device", "${Build.MANUFACTURER} ${Build.MODEL}")
            .put("android", Build.VERSION.SDK_INT)
            .put("anon_bytes", ProcessMemory.anonymousBytes())
            .toString()
        Log.i(TAG, "benchmark: $json")
        getExternalFilesDir(null)?.let { File(it, "benchmark.json").writeText(json + "\n") }
    }

    private fun show(result: Benchmark.Result) {
        val rows = result.timings.map {
            getString(R.string.benchmark_row, it.tokens, it.medianMillis, it.p90Millis)
        }
        val facts = getString(R.string.model_facts, result.task, result.engine, result.modelBytes / MEGA)
        findViewById<TextView>(R.id.report).text = (listOf(facts) + rows).joinToString("\n")
    }

    private companion object {
        const val TAG = "edge_albert"
        const val DEFAULT_RUNS = 20
        const val MOST_RUNS = 1000
        const val MEGA = 1e6

        /** "16,128" ► the numbers in it; the defaults when there are none. */
        fun lengths(wanted: String?): List<Int> =
            wanted.orEmpty().split(',').mapNotNull { it.trim().toIntOrNull() }.filter { it > 0 }
                .ifEmpty { Benchmark.LENGTHS }
    }
}

package io.edgealbert.demo

import android.content.Intent
import android.os.Looper
import android.widget.TextView
import java.io.File
import org.json.JSONObject
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.shadows.ShadowLog

@RunWith(RobolectricTestRunner::class)
class BenchmarkActivityTest {
    /** What `am start --ei runs 2 --es lengths 8,16` sends. */
    private val intent = Intent(
        "io.edgealbert.demo.BENCHMARK"
    ).putExtra("runs", 2).putExtra("lengths", "8, 16,x,-1")

    @Test
    fun theIntentsResultIsInTheLogAndInAFile() {
        Robolectric.buildActivity(BenchmarkActivity::class.java, intent).setup().use { controller ->
            val activity = controller.get()
            activity.pending!!.get()
            shadowOf(Looper.getMainLooper()).idle()
            val line = ShadowLog.getLogsForTag("edge_albert").single { it.msg.startsWith("benchmark: ") }.msg
            val json = JSONObject(line.removePrefix("benchmark: "))
            val timings = json.getJSONArray("timings")
            assertEquals(listOf(8, 16), List(timings.length()) { timings.getJSONObject(it).getInt("tokens") })
            assertEquals(2, timings.getJSONObject(0).getInt("runs"))
            assertTrue(json.getString("engine").startsWith("ONNX Runtime"))
            val file = File(activity.getExternalFilesDir(null), "benchmark.json")
            assertEquals(json.toString(), JSONObject(file.readText()).toString())
            val shown = activity.findViewById<TextView>(R.id.report).text
            assertTrue("$shown", shown.contains("16 tokens: median"))
        }
    }
}

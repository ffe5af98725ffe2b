package io.edgealbert.demo

import android.content.Context
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Looper
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.TextView
import io.edgealbert.BundleAssets
import io.edgealbert.Session
import io.edgealbert.TestData
import io.edgealbert.tasks.TextClassifier
import java.io.File
import kotlin.math.roundToInt
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

@RunWith(RobolectricTestRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(qualifiers = "w360dp-h640dp-xhdpi")
class MainActivityTest {
    private val message = "You have won a FREE phone! Call now to claim your prize"

    private fun open(): ActivityController<MainActivity> =
        Robolectric.buildActivity(MainActivity::class.java).setup().also { finish(it.get()) }

    /** Waits for the model's thread, then lets the main thread show what came of it. */
    private fun finish(activity: MainActivity) {
        activity.pending!!.get()
        shadowOf(Looper.getMainLooper()).idle()
    }

    private fun MainActivity.text(id: Int) = findViewById<TextView>(id).text.toString()

    private fun MainActivity.type(text: String) = findViewById<EditText>(R.id.input).run {
        setText(text)
        setSelection(length())
    }

    private fun MainActivity.press() = findViewById<Button>(R.id.classify).performClick()

    /** The label as the screen writes it, from the library alone. */
    private fun expected(text: String): String = Session.open(TestData.bundle).use { session ->
        val best = TextClassifier(session).classify(text).first()
        "${best.label} ${(best.score * 100).roundToInt()}\u00A0%"
    }

    @Test
    fun typePressRead() = open().use { controller ->
        val activity = controller.get()
        assertTrue(activity.text(R.id.details).startsWith("Ready"))
        activity.type(message)
        activity.press()
        assertFalse(activity.findViewById<Button>(R.id.classify).isEnabled)
        finish(activity)
        assertEquals(expected(message), activity.text(R.id.answer))
        assertTrue(activity.findViewById<Button>(R.id.classify).isEnabled)
        val details = activity.text(R.id.details)
        assertTrue(
            details,
            Regex(
                """[\d.]+ ms · \d+ tokens \n[\d.]+ MB model · \d+ MB memory of this app\nONNX Runtime .*"""
            ).matches(details)
        )
        snapshot(activity.window.decorView, "main")
    }

    @Test
    fun rotationDuringInferenceLosesNothing() {
        val controller = open()
        val before = controller.get()
        before.type(message)
        before.press()
        val work = before.pending!!
        RuntimeEnvironment.setQualifiers("+land")
        controller.configurationChange()
        val after = controller.get()
        assertTrue("the activity was made anew", before !== after)
        assertTrue(before.isDestroyed)
        work.get()
        shadowOf(Looper.getMainLooper()).idle()
        assertEquals(message, after.text(R.id.input))
        assertEquals(expected(message), after.text(R.id.answer))
        controller.close()
    }

    @Test
    fun anAnswerThatComesWhileTheScreenIsAwayWaitsForIt() = open().use { controller ->
        val activity = controller.get()
        activity.type(message)
        activity.press()
        controller.pause().stop()
        finish(activity)
        controller.restart().start().resume()
        assertEquals(expected(message), activity.text(R.id.answer))
    }

    @Test
    fun whatCannotBeAnsweredIsSaid() = open().use { controller ->
        val activity = controller.get()
        for ((text, said) in listOf("" to "empty", "🫠🫠🫠" to "vocabulary")) {
            activity.type(text)
            activity.press()
            finish(activity)
            assertEquals("", activity.text(R.id.answer))
            assertTrue(activity.text(R.id.details), activity.text(R.id.details).contains(said))
        }
    }

    @Test
    fun aMegabyteIsCut() = open().use { controller ->
        val activity = controller.get()
        activity.type("win a prize ".repeat(90_000))
        activity.press()
        finish(activity)
        assertTrue(
            activity.text(R.id.details),
            activity.text(R.id.details).contains("512 tokens (the rest was cut off)")
        )
    }

    @Test
    fun theBundleIsUnpackedOnceAndAgainWhenDamaged() {
        val context: Context = RuntimeEnvironment.getApplication()
        val model = File(context.noBackupFilesDir, "bundle/model.onnx")
        open().close()
        model.setLastModified(1_000_000_000_000)
        ModelWorker(context.assets, context.noBackupFilesDir).open().get()
        assertEquals("not copied again", 1_000_000_000_000, model.lastModified())
        model.writeText("damaged")
        ModelWorker(context.assets, context.noBackupFilesDir).run {
            open().get()
            shadowOf(Looper.getMainLooper()).idle()
            assertTrue("$state", state is State.Ready)
        }
        assertEquals(File(TestData.bundle, "model.onnx").length(), model.length())
        File(context.noBackupFilesDir, "bundle/bundle.json").delete() // as an interrupted copy leaves it
        model.delete()
        ModelWorker(context.assets, context.noBackupFilesDir).open().get()
        assertEquals(File(TestData.bundle, "model.onnx").length(), model.length())
    }

    @Test
    fun assetsWithoutABundleSaySo() {
        val context: Context = RuntimeEnvironment.getApplication()
        val error = runCatching {
            BundleAssets.install(context.assets, context.noBackupFilesDir, "nowhere")
        }.exceptionOrNull()
        assertTrue("$error", error!!.message!!.contains("assets/nowhere: no bundle in this app"))
    }

    private fun snapshot(view: View, name: String) {
        val bitmap = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)
        view.draw(Canvas(bitmap))
        val file = File("target/screens/$name.png").apply { parentFile.mkdirs() }
        file.outputStream().use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        assertTrue(file.length() > 5000)
    }
}

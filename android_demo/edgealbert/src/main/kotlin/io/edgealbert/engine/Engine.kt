package io.edgealbert.engine

import io.edgealbert.Bundle
import io.edgealbert.EngineException
import java.io.File

/**
 * An open model. Takes one text at a time: int8 activations are quantised over everything in a
 * batch, so a text's answer would depend on its neighbours. Safe from any thread; closing twice is
 * fine, running after that an [EngineException].
 */
interface Engine : AutoCloseable {
    /** The file it runs. */
    val model: File

    /** Package and version, as in "ONNX Runtime 1.29.0". */
    val version: String

    /**
     * [inputIds] and [tokenTypeIds] have one entry per token, without padding. Returns the graph's
     * output for it, row by row: (classes), (hidden size), or (at least tokens, classes).
     */
    fun run(inputIds: IntArray, tokenTypeIds: IntArray): FloatArray

    override fun close()
}

/** Which engine runs which format of model. */
object Engines {
    private const val MOST_THREADS = 4

    private enum class Kind(val format: String, val library: String, val className: String) {
        ONNX("onnx", "com.microsoft.onnxruntime:onnxruntime-android", "ai.onnxruntime.OrtSession"),
        TFLITE("tflite", "org.tensorflow:tensorflow-lite", "org.tensorflow.lite.Interpreter")
    }

    /**
     * The first engine that is in the app and whose model is in the bundle. threads: of one
     * inference. Throws [EngineException] when there is none, or when it refuses the model.
     */
    fun open(bundle: Bundle, threads: Int = defaultThreads()): Engine {
        val usable = Kind.values().filter { it.format in bundle.formats }
        val kind = usable.firstOrNull { isInApp(it.className) } ?: throw EngineException(
            "${bundle.folder}: has ${bundle.formats.joinToString()}, and " + if (usable.isEmpty()) {
                "this library runs ${Kind.values().joinToString { it.format }}: export it again"
            } else {
                "no engine for it is in this app: add ${usable.joinToString(" or ") { it.library }}"
            }
        )
        val model = bundle.modelFile(kind.format)
        if (kind == Kind.TFLITE) bundle.needs(kind.format)?.let { refuseNewer(model, it) }
        return when (kind) {
            Kind.ONNX -> OnnxEngine(model, threads)
            Kind.TFLITE -> TfliteEngine(model, threads, bundle.exits)
        }
    }

    /** Every TFLite engine that this library is built with is older than those a manifest needs. */
    private fun refuseNewer(model: File, needed: String): Nothing = throw EngineException(
        "$model: needs $needed, and older engines misread it: export it again in int8, or with --format onnx"
    )

    /** As many threads as there are processors, four at most: phones have four fast cores. */
    fun defaultThreads(): Int = minOf(MOST_THREADS, Runtime.getRuntime().availableProcessors())

    private fun isInApp(className: String): Boolean = try {
        Class.forName(className, false, Engines::class.java.classLoader)
        true
    } catch (_: ClassNotFoundException) {
        false
    }
}

/**
 * Opens an engine's native part. Its library may lack this device's processor, and then the first
 * call throws a LinkageError, or whatever the engine makes of it.
 */
internal inline fun <T> openNative(library: String, model: File, open: () -> T): T = try {
    open()
} catch (error: LinkageError) {
    throw noNativeLibrary(library, error)
} catch (error: EngineException) {
    throw error
} catch (@Suppress("TooGenericExceptionCaught") error: Exception) {
    // the engines' own classes share no base but Exception
    throw EngineException("$model: $library refused it (${firstLine(error)})", error)
}

internal fun noNativeLibrary(library: String, error: Throwable) = EngineException(
    "no native library of $library for this processor (${System.getProperty("os.arch")}) in the app: " +
        "build for its ABI (${firstLine(error)})",
    error
)

internal fun firstLine(error: Throwable): String =
    (error.message ?: error.javaClass.simpleName).trim().substringBefore('\n')

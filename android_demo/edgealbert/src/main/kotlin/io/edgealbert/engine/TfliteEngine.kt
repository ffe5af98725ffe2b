package io.edgealbert.engine

import io.edgealbert.Bundle
import io.edgealbert.EngineException
import java.io.File
import java.nio.Buffer
import java.nio.FloatBuffer
import java.nio.IntBuffer
import org.tensorflow.lite.Interpreter

/**
 * TensorFlow Lite, or LiteRT, which kept the package name. The model file is mapped.
 *
 * TensorFlow Lite up to 2.16 misreads weights with a scale per channel, without a word: its bundles
 * need `--tflite-compat`. An interpreter has one set of tensors, so runs wait for each other.
 */
internal class TfliteEngine(override val model: File, threads: Int, private val exits: Bundle.Exits? = null) :
    Engine {
    private var interpreter: Interpreter? = openNative(LIBRARY, model) {
        Interpreter(model, Interpreter.Options().setNumThreads(threads).setUseXNNPACK(true))
    }
    private val places: IntArray // of INPUTS, then those of early exit, among the interpreter's inputs
    private var length = NO_LENGTH
    override val version: String

    init {
        places = try {
            interpreter!!.inputPlaces(if (exits == null) INPUTS else INPUTS + EXIT_INPUTS)
        } catch (error: IllegalArgumentException) {
            close()
            throw EngineException("$model: not a model of edge_albert (${firstLine(error)})", error)
        }
        version = "$LIBRARY ${org.tensorflow.lite.TensorFlowLite.runtimeVersion()}"
    }

    @Synchronized
    override fun run(inputIds: IntArray, tokenTypeIds: IntArray): FloatArray {
        val open = interpreter ?: throw EngineException("$model: the model is closed: open it again")
        try {
            if (length != inputIds.size) resize(open, inputIds.size)
            val mask = IntArray(inputIds.size) { 1 }
            val inputs = arrayOfNulls<Any>(places.size)
            val values = listOf(inputIds, mask, tokenTypeIds).map(IntBuffer::wrap) + exitInputs()
            values.forEachIndexed { i, value -> inputs[places[i]] = value }
            open.runForMultipleInputsOutputs(inputs, emptyMap<Int, Any>())
            val buffer = open.getOutputTensor(0).asReadOnlyBuffer().asFloatBuffer()
            return FloatArray(buffer.remaining()).also { buffer.get(it) }
        } catch (@Suppress("TooGenericExceptionCaught") error: RuntimeException) {
            length = NO_LENGTH
            throw EngineException("$model: $LIBRARY could not run it (${firstLine(error)})", error)
        }
    }

    /** TFLite has no defaults for inputs, so the bundle's are given with every run. */
    private fun exitInputs(): List<Buffer> = exits?.run {
        listOf(FloatBuffer.wrap(floatArrayOf(threshold)), IntBuffer.wrap(intArrayOf(iterations)))
    }.orEmpty()

    private fun resize(open: Interpreter, tokens: Int) {
        for (place in places.take(INPUTS.size)) open.resizeInput(place, intArrayOf(1, tokens))
        open.allocateTensors()
        length = tokens
    }

    @Synchronized
    override fun close() {
        interpreter?.close()
        interpreter = null
    }

    private companion object {
        const val LIBRARY = "TensorFlow Lite"
        const val NO_LENGTH = -1
        val INPUTS = listOf("input_ids", "attention_mask", "token_type_ids")
        val EXIT_INPUTS = listOf("exit_threshold", "max_depth")

        /** Where each of [names] stands, by the names in the file's signature, which has no others. */
        fun Interpreter.inputPlaces(names: List<String>): IntArray {
            require(inputTensorCount == names.size) { "$inputTensorCount inputs, expected ${names.size}" }
            val signature = signatureKeys.single()
            return names.map { name ->
                val tensor = getInputTensorFromSignature(name, signature).index()
                (0 until inputTensorCount).first { getInputTensor(it).index() == tensor }
            }.toIntArray()
        }
    }
}

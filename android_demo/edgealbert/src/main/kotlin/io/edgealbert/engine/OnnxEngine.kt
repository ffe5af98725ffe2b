package io.edgealbert.engine

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import ai.onnxruntime.OrtSession.RunOptions
import ai.onnxruntime.OrtSession.SessionOptions
import io.edgealbert.EngineException
import java.io.File
import java.nio.LongBuffer
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.write

/**
 * ONNX Runtime, set up for a small memory exactly as in Python (edge_albert/runtime/onnx_engine.py):
 * basic optimisation only, the file's path rather than its bytes, no memory pattern per length, and
 * after a long input the arena shrinks.
 */
internal class OnnxEngine(override val model: File, threads: Int) : Engine {
    private val lock = ReentrantReadWriteLock() // many may run, one may close
    private val environment: OrtEnvironment
    private var session: OrtSession?
    override val version: String

    init {
        val (env, opened) = openNative(LIBRARY, model) {
            val env = OrtEnvironment.getEnvironment()
            env to options(threads).use { env.createSession(model.path, it) }
        }
        environment = env
        session = opened
        version = "$LIBRARY ${env.version}"
    }

    override fun run(inputIds: IntArray, tokenTypeIds: IntArray): FloatArray = lock.read {
        val open = session ?: throw EngineException("$model: the model is closed: open it again")
        try {
            val inputs = LinkedHashMap<String, OnnxTensor>()
            try {
                inputs["input_ids"] = tensor(inputIds)
                inputs["attention_mask"] = tensor(IntArray(inputIds.size) { 1 })
                inputs["token_type_ids"] = tensor(tokenTypeIds)
                runOptions(inputIds.size).use { options ->
                    open.run(inputs, options).use { output(it) }
                }
            } finally {
                inputs.values.forEach { it.close() }
            }
        } catch (error: OrtException) {
            throw EngineException("$model: $LIBRARY could not run it (${firstLine(error)})", error)
        }
    }

    private fun tensor(values: IntArray): OnnxTensor {
        val longs = LongBuffer.wrap(LongArray(values.size) { values[it].toLong() })
        return OnnxTensor.createTensor(environment, longs, longArrayOf(1, values.size.toLong()))
    }

    private fun output(result: OrtSession.Result): FloatArray {
        val buffer = (result.get(0) as OnnxTensor).floatBuffer
        return FloatArray(buffer.remaining()).also { buffer.get(it) }
    }

    override fun close() = lock.write {
        session?.close()
        session = null
    }

    private companion object {
        const val LIBRARY = "ONNX Runtime"

        /** Activations of up to this many tokens stay allocated between runs. */
        const val KEEP_TOKENS = 128

        fun options(threads: Int) = SessionOptions().apply {
            setIntraOpNumThreads(threads)
            setInterOpNumThreads(1)
            setOptimizationLevel(SessionOptions.OptLevel.BASIC_OPT)
            setMemoryPatternOptimization(false)
            setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
        }

        fun runOptions(tokens: Int) = RunOptions().apply {
            if (tokens > KEEP_TOKENS) {
                addRunConfigEntry("memory.enable_memory_arena_shrinkage", "cpu:0")
            }
        }
    }
}

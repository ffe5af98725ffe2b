package io.edgealbert

import io.edgealbert.engine.Engine
import io.edgealbert.engine.Engines
import io.edgealbert.tokenizer.Encoding
import io.edgealbert.tokenizer.Tokenizer
import java.io.File

/**
 * An open bundle: its tokenizer and its engine. Opening takes a while and reads files: do it on a
 * background thread. Safe from any thread once open; close it, or use `use`.
 */
class Session(val bundle: Bundle, val tokenizer: Tokenizer, private val engine: Engine) : AutoCloseable {
    /** The engine's package and version. */
    val engineVersion: String get() = engine.version

    /** Tokens that two neighbouring windows share, as in the SQuAD recipe; at most a quarter. */
    internal val defaultStride: Int get() = minOf(STRIDE, maxLength / STRIDES)

    /** Size of the model file that is open. */
    val modelBytes: Long get() = engine.model.length()

    /** Tokens the model takes at most, special ones included. */
    val maxLength: Int get() = bundle.maxLength

    /**
     * One input of the model. [InputException], calling the text [name], when it is empty, unknown
     * throughout, or too long and not [truncate].
     */
    fun encode(
        text: String,
        pair: String? = null,
        truncate: Boolean = false,
        name: String = "text"
    ): Encoding {
        checkText(text, name)
        if (pair != null) checkText(pair, "$name (second part)")
        val encoding = tokenizer.encode(text, pair, if (truncate) maxLength else Int.MAX_VALUE)
        if (encoding.size > maxLength) {
            throw InputException(
                "$name: ${encoding.size} tokens, the model takes $maxLength: shorten it, or truncate"
            )
        }
        if (!saysAnything(encoding, text, pair)) {
            throw InputException("$name: nothing in it is in the model's vocabulary")
        }
        return encoding
    }

    /** Whether any token is a known piece of visible text, not only <unk> and bare word boundaries. */
    private fun saysAnything(encoding: Encoding, text: String, pair: String?): Boolean =
        encoding.inputIds.indices.any { i ->
            val part = encoding.sequenceIds[i]
            part != Encoding.ADDED && encoding.inputIds[i] !in tokenizer.specialIds &&
                !isBlank(if (part == 0) text else pair.orEmpty(), encoding.starts[i], encoding.ends[i])
        }

    /** Whether nothing of text[start, end) is visible, by Python's idea of whitespace. */
    internal fun isBlank(text: String, start: Int, end: Int): Boolean =
        (start until end).all { tokenizer.isSpace(text[it].code) }

    /** The graph's output for one encoding, see [Engine.run]. */
    fun run(encoding: Encoding): FloatArray = engine.run(encoding.inputIds, encoding.tokenTypeIds)

    internal fun checkText(text: String, name: String) {
        if (isBlank(text, 0, text.length)) throw InputException("$name: empty: give at least one word")
    }

    internal fun checkTask(task: String) {
        if (bundle.task != task) {
            throw BundleException("${bundle.folder}: its task is ${bundle.task}, not $task")
        }
    }

    override fun close() = engine.close()

    companion object {
        private const val STRIDE = 128
        private const val STRIDES = 4

        /** Verify and open. threads: of one inference. Throws [EdgeAlbertException]. */
        fun open(folder: File, threads: Int = Engines.defaultThreads()): Session {
            val bundle = Bundle.open(folder)
            val tokenizer = Tokenizer.open(bundle)
            if (tokenizer.vocabSize != bundle.vocabSize) {
                throw TokenizerException(
                    "$folder: the tokenizer has ${tokenizer.vocabSize} entries, the model's vocab_size is " +
                        "${bundle.vocabSize}: they belong to different models"
                )
            }
            return Session(bundle, tokenizer, Engines.open(bundle, threads))
        }
    }
}

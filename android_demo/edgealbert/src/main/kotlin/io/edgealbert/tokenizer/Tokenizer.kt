package io.edgealbert.tokenizer

import io.edgealbert.Bundle
import io.edgealbert.TokenizerException
import java.io.File
import org.json.JSONException
import org.json.JSONObject

/**
 * Text ► ids and offsets, equal to those of the Python package (edge_albert/tokenizer.py) on every
 * text. Immutable, so safe from any thread.
 *
 * Special tokens written in a text ("[SEP]", "<pad>", …) are ordinary characters.
 */
class Tokenizer private constructor(private val model: SpieceModel, private val special: Special) {
    private class Special(val pad: Int, val unk: Int, val cls: Int, val sep: Int, val all: Set<Int>)

    /** Entries of the vocabulary, special tokens included. */
    val vocabSize: Int get() = model.size
    val padId: Int get() = special.pad
    val unknownId: Int get() = special.unk
    val clsId: Int get() = special.cls
    val sepId: Int get() = special.sep
    val specialIds: Set<Int> get() = special.all

    /**
     * [CLS] text [SEP], or [CLS] text [SEP] pair [SEP], at most [maxLength] tokens in all. Too much
     * is cut at the end, from both texts where both exceed half of the room ("longest_first").
     */
    fun encode(text: String, pair: String? = null, maxLength: Int = Int.MAX_VALUE): Encoding {
        val first = model.split(text)
        val second = pair?.let { model.split(it) }
        val room = maxLength - addedTokens(pair != null)
        if (room < 0) throw TokenizerException("maxLength $maxLength leaves no room for a text")
        val (keepFirst, keepSecond) = keptLengths(first.size, second?.size, room)
        return build(first.slice(0, keepFirst), second?.slice(0, keepSecond))
    }

    /**
     * As many encodings as a long text needs, each sharing [stride] tokens with the one before: over
     * the pair (a context), with [text] (its question) in front of each; over [text] without a pair.
     */
    fun encodeWindows(text: String, pair: String?, maxLength: Int, stride: Int): List<Encoding> {
        val first = model.split(text)
        val second = pair?.let { model.split(it) }
        val moving = second ?: first
        val fixed = if (second == null) 0 else first.size
        val room = maxLength - addedTokens(pair != null) - fixed
        return windowRanges(moving.size, room, stride).map { range ->
            val part = moving.slice(range.first, range.last + 1)
            if (second == null) build(part, null) else build(first, part)
        }
    }

    /** An input of exactly [tokens] tokens for timing; what it says does not matter. */
    internal fun filler(tokens: Int): Encoding {
        val ids = IntArray(tokens - addedTokens(pair = false)) { unknownId }
        return build(Pieces(ids, IntArray(ids.size), IntArray(ids.size)), null)
    }

    /** Whether Python calls a character whitespace. */
    internal fun isSpace(code: Int): Boolean = model.rules.isSpace(code)

    private fun build(first: Pieces, second: Pieces?): Encoding =
        Encoding.build(first, second, special.cls, special.sep)

    companion object {
        /** The version whose segmentations this tokenizer reproduces, ties included. */
        const val SENTENCEPIECE_VERSION = "0.2.3"

        private fun addedTokens(pair: Boolean): Int = if (pair) 3 else 2

        /** The tokenizer of a verified bundle. Throws [TokenizerException], naming file and field. */
        fun open(bundle: Bundle): Tokenizer {
            val source = File(bundle.folder, Bundle.MANIFEST).path
            return try {
                open(bundle, bundle.manifest.getJSONObject("tokenizer"), source)
            } catch (error: JSONException) {
                throw TokenizerException("$source: tokenizer: ${error.message}: export it again", error)
            }
        }

        private fun open(bundle: Bundle, rules: JSONObject, source: String): Tokenizer {
            val kind = rules.getString("kind")
            if (kind != "sentencepiece") {
                throw TokenizerException(
                    "$source: tokenizer.kind is $kind: this library has SentencePiece only"
                )
            }
            val table = readTable(bundle, rules, source)
            val path = bundle.file(rules.getString("file"))
                ?: throw JSONException("file is not among the bundle's files")
            val file = SpieceFile.parse(path.readBytes(), path.path)
            val special = readSpecial(file, rules.getJSONObject("special_tokens"), path)
            val removeSpace = rules.getBoolean("remove_space")
            val model = try {
                SpieceModel(file, table, removeSpace, special.all)
            } catch (error: DamagedException) {
                throw TokenizerException("$path: ${error.message}: fetch the file again", error)
            }
            return Tokenizer(model, special)
        }

        private fun readTable(bundle: Bundle, rules: JSONObject, source: String): CharacterRules {
            val path = bundle.file(CharacterRules.FILE) ?: throw TokenizerException(
                "$source: files lacks ${CharacterRules.FILE}: export the bundle again with --android"
            )
            val table = CharacterRules.parse(path.readBytes(), path.path)
            val wanted = rules.getBoolean("do_lower_case") to rules.getBoolean("keep_accents")
            if (wanted != table.doLowerCase to table.keepAccents) {
                throw TokenizerException(
                    "$path: made for other rules than $source has: export the bundle again"
                )
            }
            return table
        }

        private fun readSpecial(file: SpieceFile, tokens: JSONObject, path: File): Special {
            val ids = tokens.keys().asSequence().associateWith { role ->
                val entry = tokens.getJSONObject(role)
                val id = entry.getInt("id")
                if (file.pieces.getOrNull(id)?.let { String(it) } != entry.getString("token")) {
                    throw TokenizerException(
                        "$path: piece $id is not ${entry.getString("token")}, as the tokenizer rules " +
                            "say: the file belongs to another model"
                    )
                }
                id
            }
            fun id(role: String) = ids[role] ?: throw JSONException("special_tokens lacks $role")
            return Special(id("pad"), id("unk"), id("cls"), id("sep"), ids.values.toSet())
        }
    }
}

/** How many pieces of each text stay in [room], as the tokenizers library splits it: evenly. */
private fun keptLengths(first: Int, second: Int?, room: Int): Pair<Int, Int> {
    val other = second ?: 0
    if (first.toLong() + other <= room) return first to other
    if (second == null) return room to 0
    val short = minOf(minOf(first, other), room / 2)
    val long = minOf(maxOf(first, other), room - short)
    return if (first <= other) short to long else long to short
}

/** Ranges of at most [room] pieces that share [stride] with the one before; the last ends at the end. */
private fun windowRanges(length: Int, room: Int, stride: Int): List<IntRange> {
    if (room < 1 || stride < 0 || room <= stride) {
        throw TokenizerException(
            "stride $stride must be at least 0 and smaller than the window's ${maxOf(room, 0)} tokens"
        )
    }
    val last = maxOf(length - stride, 1)
    return (0 until last step room - stride).map { it until minOf(it + room, length) }
}

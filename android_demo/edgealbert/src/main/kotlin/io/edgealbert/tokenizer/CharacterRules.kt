package io.edgealbert.tokenizer

import io.edgealbert.TokenizerException

/**
 * ALBERT's rules for single characters, from the table that the exporter generates, so that Java's
 * Unicode tables and Python's cannot differ. The format is described in edge_albert/android.py.
 */
internal class CharacterRules private constructor(
    val doLowerCase: Boolean,
    val keepAccents: Boolean,
    private val spaces: Ranges,
    private val digits: Ranges,
    private val runs: Runs
) {
    /** One code point for each of ASCII, or [CHANGES] where the runs have to be asked. */
    private val ascii = IntArray(ASCII) { code ->
        val out = IntArray(MAX_LENGTH)
        when (runs.replace(code, out)) {
            UNCHANGED -> code
            1 -> out[0]
            else -> CHANGES
        }
    }

    /** Whether Python's str.isspace() holds. */
    fun isSpace(code: Int): Boolean = spaces.contains(code)

    /** Whether Python's str.isdigit() holds. */
    fun isDigit(code: Int): Boolean = digits.contains(code)

    /** What [code] becomes: written to [out], which holds [MAX_LENGTH]; returns how many. */
    fun replace(code: Int, out: IntArray): Int {
        val single = if (code < ASCII) ascii[code] else CHANGES
        if (single != CHANGES) {
            out[0] = single
            return 1
        }
        val count = runs.replace(code, out)
        if (count == UNCHANGED) out[0] = code
        return if (count == UNCHANGED) 1 else count
    }

    /** Sorted, disjoint ranges of code points. */
    private class Ranges(private val firsts: IntArray, private val lengths: IntArray) {
        fun contains(code: Int): Boolean {
            val at = lastNotAbove(firsts, code)
            return at >= 0 && code - firsts[at] < lengths[at]
        }
    }

    /** Runs of characters that change, sorted; [values] holds each run's replacement from [from]. */
    private class Runs(
        private val firsts: IntArray,
        private val lengths: IntArray,
        private val steps: IntArray,
        private val growths: IntArray,
        private val from: IntArray,
        private val values: IntArray
    ) {
        /** The number of code points written to [out], or [UNCHANGED]. */
        fun replace(code: Int, out: IntArray): Int {
            val at = lastNotAbove(firsts, code)
            if (at < 0) return UNCHANGED
            val distance = code - firsts[at]
            val step = steps[at]
            if (distance % step != 0 || distance / step >= lengths[at]) return UNCHANGED
            val start = from[at]
            val count = from[at + 1] - start
            System.arraycopy(values, start, out, 0, count)
            if (count > 0) out[count - 1] += distance / step * growths[at]
            return count
        }
    }

    companion object {
        /** The table's name in the bundle. */
        const val FILE = "tokenizer_rules.bin"

        /** The most characters that one becomes (U+FDFA becomes 18). */
        const val MAX_LENGTH = 32
        private const val VERSION = 1
        private const val MAGIC = "EATR"
        private const val ASCII = 128
        private const val CHANGES = -1
        private const val UNCHANGED = -1

        /** Throws [TokenizerException] for anything but a whole table of a version it knows. */
        fun parse(bytes: ByteArray, source: String): CharacterRules {
            try {
                val reader = BinaryReader(bytes)
                if (String(reader.take(MAGIC.length), Charsets.US_ASCII) !=
                    MAGIC
                ) {
                    throw DamagedException("no table")
                }
                val version = reader.varint()
                if (version != VERSION) {
                    throw TokenizerException(
                        "$source: version $version of the table, this library reads $VERSION: " +
                            "export the bundle again with the edge_albert of the same release"
                    )
                }
                val flags = reader.varint()
                reader.bytes() // the version of Unicode that the exporter's Python had
                val spaces = ranges(reader)
                val digits = ranges(reader)
                val runs = runs(reader)
                if (reader.hasMore()) throw DamagedException("bytes after the end")
                return CharacterRules(flags and 1 != 0, flags and 2 != 0, spaces, digits, runs)
            } catch (error: DamagedException) {
                throw TokenizerException(
                    "$source: damaged (${error.message}): export the bundle again",
                    error
                )
            }
        }

        private fun zigzag(reader: BinaryReader): Int {
            val value = reader.varint()
            return if (value and 1 == 0) value ushr 1 else -(value ushr 1) - 1
        }

        private fun ranges(reader: BinaryReader): Ranges {
            val count = reader.count()
            val firsts = IntArray(count)
            val lengths = IntArray(count)
            var end = 0
            for (i in 0 until count) {
                firsts[i] = end + reader.varint()
                lengths[i] = reader.varint() + 1
                end = firsts[i] + lengths[i]
            }
            return Ranges(firsts, lengths)
        }

        private fun runs(reader: BinaryReader): Runs {
            val count = reader.count()
            val firsts = IntArray(count)
            val lengths = IntArray(count)
            val steps = IntArray(count)
            val growths = IntArray(count)
            val from = IntArray(count + 1)
            val values = IntList()
            var before = 0
            for (i in 0 until count) {
                firsts[i] = before + reader.varint()
                before = firsts[i]
                lengths[i] = reader.varint() + 1
                steps[i] = reader.varint() + 1
                growths[i] = reader.varint()
                val size = reader.varint()
                if (size > MAX_LENGTH) throw DamagedException("$size characters for one")
                repeat(size) { values.add(firsts[i] + zigzag(reader)) }
                from[i + 1] = values.size
            }
            return Runs(firsts, lengths, steps, growths, from, values.toArray())
        }

        /** Index of the last of the sorted [values] that is at most [value], or -1. */
        private fun lastNotAbove(values: IntArray, value: Int): Int {
            val at = values.binarySearch(value)
            return if (at >= 0) at else -at - 2
        }
    }
}

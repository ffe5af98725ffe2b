package io.edgealbert

import io.edgealbert.tokenizer.Encoding
import io.edgealbert.tokenizer.Tokenizer
import java.io.File
import java.lang.management.ManagementFactory
import org.json.JSONArray

/**
 * The other side of benchmarks/android_tokenizer_parity.py: each line of standard input is a JSON
 * array [text] or [text, pair] or [text, pair, maxLength]; each line of standard output has the
 * tokens as id:start:end, in code points as Python counts. Standard error gets the processor time
 * that the tokenizer took, without the first lines, for which the JVM compiles it.
 */
object TokenizeMain {
    private const val WARM_UP = 1000

    @JvmStatic
    fun main(arguments: Array<String>) {
        val tokenizer = Tokenizer.open(Bundle.open(File(arguments[0])))
        val out = System.out.bufferedWriter()
        val clock = ManagementFactory.getThreadMXBean()
        var nanos = 0L
        var bytes = 0L
        var lines = 0
        System.`in`.bufferedReader().forEachLine { line ->
            val input = JSONArray(line)
            val text = input.getString(0)
            val pair = if (input.isNull(1)) null else input.getString(1)
            val started = clock.currentThreadCpuTime
            val encoding = tokenizer.encode(text, pair, input.optInt(2, Int.MAX_VALUE))
            if (lines++ >= WARM_UP) {
                nanos += clock.currentThreadCpuTime - started
                bytes += (text + pair.orEmpty()).toByteArray().size
            }
            out.write(tokens(encoding, listOf(text, pair.orEmpty())))
            out.write("\n")
        }
        out.flush()
        System.err.println("""{"bytes": $bytes, "seconds": ${nanos / 1e9}}""")
    }

    /** "id:start:end …" with offsets in code points. */
    fun tokens(encoding: Encoding, texts: List<String>): String {
        val counts = texts.map(::codePointCounts)
        return encoding.inputIds.indices.joinToString(" ") { i ->
            val part = encoding.sequenceIds[i]
            val count = counts[maxOf(part, 0)]
            val start = if (part == Encoding.ADDED) 0 else count[encoding.starts[i]]
            val end = if (part == Encoding.ADDED) 0 else count[encoding.ends[i]]
            "${encoding.inputIds[i]}:$start:$end"
        }
    }

    /** For each UTF-16 index the number of code points before it. */
    private fun codePointCounts(text: String): IntArray {
        val counts = IntArray(text.length + 1)
        for (i in text.indices) {
            val starts = !text[i].isLowSurrogate() || i == 0 || !text[i - 1].isHighSurrogate()
            counts[i + 1] = counts[i] + if (starts) 1 else 0
        }
        return counts
    }
}

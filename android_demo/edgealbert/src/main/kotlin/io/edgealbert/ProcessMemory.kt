package io.edgealbert

import java.io.File
import java.io.IOException

/** What this process takes of the device's memory, as the kernel counts it. */
object ProcessMemory {
    private const val KIB = 1024L

    /**
     * Bytes that cannot be dropped (RssAnon in /proc/self/status): the figure that edge_albert's
     * reports call "anon". A model file that is mapped is not in it. 0 where the system has no such
     * file.
     */
    fun anonymousBytes(): Long = try {
        File("/proc/self/status").useLines { lines ->
            val line = lines.firstOrNull { it.startsWith("RssAnon:") }
            line?.filter(Char::isDigit)?.toLongOrNull()?.times(KIB)
        } ?: 0
    } catch (_: IOException) {
        0
    }
}

package io.edgealbert.tasks

import kotlin.math.exp

/** Probabilities from logits [from, to), in double precision. */
internal fun softmax(logits: FloatArray, from: Int = 0, to: Int = logits.size): DoubleArray =
    softmax(DoubleArray(to - from) { logits[from + it].toDouble() })

internal fun softmax(logits: DoubleArray): DoubleArray {
    val highest = logits.maxOrNull() ?: return logits
    val powers = DoubleArray(logits.size) { exp(logits[it] - highest) }
    val sum = powers.sum()
    return DoubleArray(powers.size) { powers[it] / sum }
}

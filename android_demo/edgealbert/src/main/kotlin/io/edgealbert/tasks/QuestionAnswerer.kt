package io.edgealbert.tasks

import io.edgealbert.InputException
import io.edgealbert.Session
import io.edgealbert.tokenizer.Encoding

/**
 * context.substring(start, end) answers the question; empty when the model says that none does.
 *
 * score: probability among the candidate spans (and "no answer", where allowed) of all windows.
 */
data class Answer(val text: String, val start: Int, val end: Int, val score: Double)

/**
 * Answers from a context of any length: bundles of the task question-answering.
 *
 * As edge_albert/runtime/spans.py. [nullThreshold]: null always answers; a number allows "no answer"
 * (SQuAD 2.0), given when the empty answer's score exceeds the best span's by more than it.
 */
class QuestionAnswerer(
    private val session: Session,
    private val nullThreshold: Double? = session.bundle.nullThreshold
) {
    private data class Span(val start: Int, val end: Int)

    init {
        session.checkTask("question-answering")
    }

    fun answer(
        question: String,
        context: String,
        maxAnswerTokens: Int = 30,
        stride: Int = session.defaultStride,
        candidates: Int = 20
    ): Answer {
        session.checkText(question, "question")
        session.checkText(context, "context")
        val found = HashMap<Span, Double>()
        var empty = Double.POSITIVE_INFINITY // the window least sure of having no answer decides
        for (encoding in windows(question, context, stride)) {
            val logits = session.run(encoding)
            for ((span, score) in bestSpans(encoding, logits, maxAnswerTokens, candidates)) {
                found[span] = maxOf(score, found[span] ?: Double.NEGATIVE_INFINITY)
            }
            empty = minOf(empty, logits[0].toDouble() + logits[1])
        }
        val spans = found.entries
            .sortedWith(compareBy({ -it.value }, { it.key.start }, { it.key.end }))
            .take(candidates)
        return choose(context, spans.map { it.key }, spans.map { it.value }, empty)
    }

    private fun choose(context: String, spans: List<Span>, scores: List<Double>, empty: Double): Answer {
        val (start, end) = spans.first()
        if (nullThreshold == null) {
            return Answer(context.substring(start, end), start, end, softmax(scores.toDoubleArray())[0])
        }
        val shares = softmax(doubleArrayOf(empty) + scores)
        if (empty - scores.first() > nullThreshold) return Answer("", 0, 0, shares[0])
        return Answer(context.substring(start, end), start, end, shares[1])
    }

    private fun windows(question: String, context: String, stride: Int): List<Encoding> {
        val room = session.maxLength - session.tokenizer.encode(question).size - 1
        if (room <= stride) {
            throw InputException(
                "question: leaves ${maxOf(room, 0)} of ${session.maxLength} tokens for the context, more " +
                    "than $stride are needed: shorten the question"
            )
        }
        return session.tokenizer.encodeWindows(question, context, session.maxLength, stride)
    }

    /**
     * The best spans of one window, inside the context only, with start + end logit. Starts and ends are the [count]
     * best of each; where every such end lies before every such start, the one best span of all is left.
     */
    private fun bestSpans(
        encoding: Encoding,
        logits: FloatArray,
        longest: Int,
        count: Int
    ): List<Pair<Span, Double>> {
        val inside = encoding.sequenceIds.indices.filter { encoding.sequenceIds[it] == 1 }
        val starts = inside.sortedByDescending { logits[2 * it] }.take(count)
        val ends = inside.sortedByDescending { logits[2 * it + 1] }.take(count)
        fun spans(starts: List<Int>, ends: List<Int>) = starts.flatMap { first ->
            ends.filter { it in first until first + longest }.map { last ->
                val score = (logits[2 * first] + logits[2 * last + 1]).toDouble()
                Span(encoding.starts[first], encoding.ends[last]) to score
            }
        }
        return spans(starts, ends).ifEmpty { listOf(spans(inside, inside).maxBy { it.second }) }
    }
}

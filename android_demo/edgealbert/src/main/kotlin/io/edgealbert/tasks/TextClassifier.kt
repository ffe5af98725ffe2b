package io.edgealbert.tasks

import io.edgealbert.Session
import io.edgealbert.tokenizer.Encoding

/** A class and its probability (softmax over the classes). */
data class Label(val label: String, val score: Double)

/** Classes of a text or a pair of texts: bundles of the task text-classification. */
class TextClassifier(private val session: Session) {
    init {
        session.checkTask("text-classification")
    }

    /** All classes, most probable first. With [truncate] a text that is too long is cut. */
    fun classify(text: String, pair: String? = null, truncate: Boolean = false): List<Label> =
        classify(session.encode(text, pair, truncate))

    fun classify(encoding: Encoding): List<Label> {
        val scores = softmax(session.run(encoding))
        return session.bundle.labels.mapIndexed { i, label -> Label(label, scores[i]) }
            .sortedByDescending { it.score }
    }
}

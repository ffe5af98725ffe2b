package io.edgealbert.tasks

/** An entity in a row of tagged words: words [first] to [last], both included. */
internal data class TaggedWords(val first: Int, val last: Int, val kind: String)

/**
 * Entities from the tags of words, by the rules of edge_albert/tags.py: BIO, IOBES, or labels
 * without a prefix, of which equal neighbours are one entity.
 */
internal fun taggedWords(tags: List<String>): List<TaggedWords> {
    val found = ArrayList<TaggedWords>()
    var start = 0
    var running: String? = null // the kind that may go on
    tags.forEachIndexed { i, tag ->
        val (prefix, kind) = splitTag(tag)
        val begins = kind != null && (prefix == 'B' || prefix == 'S' || kind != running)
        val before = running
        if (before != null && (begins || kind == null)) found.add(TaggedWords(start, i - 1, before))
        if (begins) start = i
        running = kind
        if (kind != null && (prefix == 'E' || prefix == 'S')) {
            found.add(TaggedWords(start, i, kind))
            running = null
        }
    }
    running?.let { found.add(TaggedWords(start, tags.lastIndex, it)) }
    return found
}

/** B-PER ► (B, PER); PER ► (null, PER); O ► (null, null) */
private fun splitTag(tag: String): Pair<Char?, String?> = when {
    tag.length > 1 && tag[0] in "BIES" && tag[1] == '-' -> tag[0] to tag.drop(2)
    tag == "O" -> null to null
    else -> null to tag
}

package io.edgealbert

/**
 * What an app may want to tell its user: one line that says what was wrong, where, and the remedy.
 *
 * The children are those of the Python package (edge_albert/errors.py), so that the same bundle
 * fails the same way on both sides.
 */
sealed class EdgeAlbertException(message: String, cause: Throwable?) : Exception(message, cause)

/** A bundle that is missing, damaged, incomplete, or written by a newer version. */
class BundleException(message: String, cause: Throwable? = null) : EdgeAlbertException(message, cause)

/** A tokenizer that is damaged, of a kind this library has not, or contradicts its rules. */
class TokenizerException(message: String, cause: Throwable? = null) : EdgeAlbertException(message, cause)

/** No engine for this bundle on this device, or one that refuses the model, or is closed. */
class EngineException(message: String, cause: Throwable? = null) : EdgeAlbertException(message, cause)

/** A text that cannot be answered: empty, unknown throughout, or longer than the model takes. */
class InputException(message: String, cause: Throwable? = null) : EdgeAlbertException(message, cause)

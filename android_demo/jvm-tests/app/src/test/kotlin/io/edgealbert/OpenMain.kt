package io.edgealbert

import java.io.File

/** Opens a bundle twice and prints what comes of it; SessionTest runs it on a pretended processor. */
object OpenMain {
    @JvmStatic
    fun main(arguments: Array<String>) = repeat(2) {
        try {
            Session.open(File(arguments[0])).close()
            println("open")
        } catch (error: EdgeAlbertException) {
            println("${error.javaClass.simpleName}: ${error.message}")
        }
    }
}

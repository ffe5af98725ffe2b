import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.application)
    alias(libs.plugins.kotlin.android)
}

android {
    namespace = "io.edgealbert.demo"
    compileSdk = libs.versions.targetSdk.get().toInt()

    defaultConfig {
        applicationId = "io.edgealbert.demo"
        minSdk = libs.versions.minSdk.get().toInt()
        targetSdk = libs.versions.targetSdk.get().toInt()
        versionCode = 1
        versionName = "1.0"
    }

    sourceSets["main"].java.srcDir("src/main/kotlin")

    buildTypes {
        release {
            isMinifyEnabled = true
            isShrinkResources = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
            // so that a release build can be installed as it is; sign with your own key to publish
            signingConfig = signingConfigs.getByName("debug")
        }
    }

    // Models do not shrink; stored as they are, they are copied out faster.
    androidResources {
        noCompress += listOf("onnx", "tflite", "model")
    }

    // One APK per processor: ONNX Runtime's library is some 20 MB for each.
    splits {
        abi {
            isEnable = true
            reset()
            include("arm64-v8a", "armeabi-v7a", "x86_64")
            isUniversalApk = false
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
}

kotlin {
    compilerOptions {
        jvmTarget.set(JvmTarget.JVM_1_8)
    }
}

dependencies {
    implementation(project(":edgealbert"))
    when (val engine = providers.gradleProperty("edgealbert.engine").get()) {
        "onnx" -> implementation(libs.onnxruntime.android)
        "tflite" -> implementation(libs.tensorflow.lite)
        "litert" -> implementation(libs.litert)
        else -> error("edgealbert.engine is $engine: choose onnx, tflite or litert")
    }
}

//go:build race

package main

const raceDetector = true // the figures include its shadow memory

//go:build race

package main

const raceDetector = true // its shadow memory is not ours

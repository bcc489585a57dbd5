package main

import "runtime/debug"

// gcPercent is how much a server's heap grows between two garbage collections, in percent of what
// is in use. With Go's default of 100 they take 9 % of an HTTP request's CPU, at 400 no less than
// at 200.
const gcPercent = 200

// setGCPercent applies gcPercent unless the user has an opinion: GOGC, as it is in the environment.
func setGCPercent(opinion string) {
	if opinion == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// Package racing tells whether the race detector is on: it makes programs several times slower and
// larger, takes looks that nothing orders for races, and has sync.Pool drop items on purpose, so
// that counts of allocations mean nothing.
package racing

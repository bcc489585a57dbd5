// Package card compares what "doctor --first-contact" has reported of a card with the driver and
// the software ConnectX: go test ./tests/card -report FILE.
package card

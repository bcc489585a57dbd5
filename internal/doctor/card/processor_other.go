//go:build !linux

package card

func onOneProcessor(f func()) { f() }

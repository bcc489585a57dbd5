// Package card makes software ConnectX whose netdev Linux uses too, for tests of stacks on the
// host's own addresses.
package card

package packet

import "net/netip"

// SourceDrop says which frames the kernel is to drop before a socket has them: TCP or UDP from a
// prefix to ports. Frames of Linux are not touched. Values may be compared.
type SourceDrop struct {
	From  netip.Prefix
	Proto uint8 // 6 (TCP) or 17 (UDP)
	// Port holds the bits of the destination port that Mask sets.
	Port, Mask uint16
}

// SourceDropper adds to an [Interface] that its kernel drops frames by source, as a [*Port] does.
type SourceDropper interface {
	// DropSources makes the kernel drop n of these, the first ones for which it has room, in place
	// of those of the call before.
	DropSources(all []SourceDrop) (n int, err error)
}

// SourceCounter adds to a [SourceDropper] that it counts what it drops.
type SourceCounter interface {
	// CountDropped calls add with the frames that were dropped since the call before. add must not
	// call the interface.
	CountDropped(add func(d SourceDrop, frames uint64))
}

package netlink

// GenericSize gives the bytes of a GenericHeader.
const GenericSize = 4

// GenericHeader mirrors struct genlmsghdr of linux include/uapi/linux/genetlink.h, which precedes
// the attributes of a message of generic netlink: command, version, two reserved bytes that must be
// 0. It satisfies nl.NetlinkRequestData of github.com/vishvananda/netlink, whose own Genlmsg has
// two bytes and sends what lies behind them in memory.
type GenericHeader struct{ Command, Version uint8 }

// Len returns GenericSize.
func (GenericHeader) Len() int { return GenericSize }

// Serialize returns the header's bytes, which the caller owns.
func (h GenericHeader) Serialize() []byte { return []byte{h.Command, h.Version, 0, 0} }

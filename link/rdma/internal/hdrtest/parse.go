// Package hdrtest parses frames in the tests of link/rdma and of the packages below it.
package hdrtest

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
)

// Parse returns the headers of a received frame without a VLAN tag.
func Parse(frame []byte) *hdr.Packet {
	p := &hdr.Packet{EtherType: binary.BigEndian.Uint16(frame[12:]), L3: hdr.EthLen}
	p.Parse(frame)
	return p
}

package card

import (
	"encoding/binary"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Command is the number of the command in an ioctl buffer, 0 if it is of the newer kind.
func Command(buf []byte) uint32 {
	c, _ := parseCall(buf)
	return c.command
}

// SpoilRecord makes the doorbell record of the receive queue that a buffer creates say 5.
func SpoilRecord(buf []byte) error {
	c, _ := parseCall(buf)
	var hw uverbs.Mlx5CreateWQReq
	c.readAttr(uverbs.AttrUHWIn, &hw)
	return writeMemory(hw.DBAddr, binary.BigEndian.AppendUint32(nil, 5))
}

// SpoilClock makes the answer of EX_QUERY_DEVICE say that the clock has this rate.
func SpoilClock(buf []byte, khz uint64) error {
	c, _ := parseCall(buf)
	var told uverbs.ExQueryDeviceResp
	c.readAttr(uverbs.AttrCoreOut, &told)
	told.HCACoreClock = khz
	b := make([]byte, uverbs.SizeOf(told))
	uverbs.PutStruct(b, told)
	return writeMemory(c.attrs[uverbs.AttrCoreOut].Data, b)
}

// CompletedEntry is the entry of a completion ring that became the software's.
func CompletedEntry(entries, size int, before, after []byte) int {
	return ring{entries: entries, size: size}.completed(before, after)
}

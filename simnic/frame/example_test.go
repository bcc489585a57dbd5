package frame_test

import (
	"encoding/binary"
	"fmt"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

// An unsegmented UDP frame of 2500 bytes of payload becomes three packets.
func ExampleCut() {
	header := make([]byte, 42)
	binary.BigEndian.PutUint16(header[12:], frame.EtherIPv4)
	header[14], header[23] = 0x45, frame.ProtoUDP
	f := frame.Frame{
		Data: append(header, make([]byte, 2500)...), NeedsCsum: true, CsumStart: 34, CsumOffset: 6,
		GSO: frame.GSOUDP, HdrLen: 42, MSS: 1000,
	}
	binary.BigEndian.PutUint16(f.Data[16:], uint16(len(f.Data)-14))
	var scratch []byte
	frame.Cut(f, &scratch, func(packet frame.Frame) { fmt.Println(len(packet.Data)) })
	// Output:
	// 1042
	// 1042
	// 542
}

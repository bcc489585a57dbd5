package mlx5

import "encoding/binary"

// What the device writes. A model of one composes the 64 bytes here, in memory
// of its own, and publishes them word by word, ownership last.

// RxCQE is an Ethernet receive completion.
type RxCQE struct {
	Hash      uint32
	HashType  uint8
	Checksum  uint16
	Status    uint16 // Hdr bits
	VLAN      uint16 // with HdrVLANStripped
	UIdx      uint32
	Metadata  uint32
	ByteCount uint32
	Timestamp uint64
	FlowTag   uint32
	Counter   uint16
	WQEID     uint16 // striding receive queues
	OpOwn     uint8
}

// Put writes all 64 bytes of the completion to b.
func (r *RxCQE) Put(b []byte) {
	c := (*[CQESize]byte)(b)
	put64(c[0x00:], uint64(r.WQEID)<<32)
	put64(c[0x08:], uint64(r.Hash))
	put64(c[0x10:], uint64(r.HashType)<<56|uint64(r.Checksum)<<16)
	put64(c[0x18:], uint64(r.Status)<<16|uint64(r.VLAN))
	put64(c[0x20:], uint64(r.UIdx)<<32|uint64(r.Metadata))
	put64(c[0x28:], uint64(r.ByteCount))
	put64(c[0x30:], r.Timestamp)
	put64(c[0x38:], uint64(r.FlowTag)<<32|uint64(r.Counter)<<16|uint64(r.OpOwn))
}

// TxCQE holds the completion of a send.
type TxCQE struct {
	UIdx      uint32
	Timestamp uint64
	Opcode    Opcode
	SQN       uint32
	Counter   uint16 // wqe_index of the completed WQE
	OpOwn     uint8
}

// Put writes all 64 bytes of the completion to b.
func (t *TxCQE) Put(b []byte) {
	c := (*[CQESize]byte)(b)
	*c = [CQESize]byte{}
	put64(c[0x20:], uint64(t.UIdx)<<32)
	put64(c[0x30:], t.Timestamp)
	put64(c[0x38:], uint64(t.Opcode)<<56|uint64(t.SQN)<<32|uint64(t.Counter)<<16|uint64(t.OpOwn))
}

// ErrorCQE holds the completion of a failed send or receive.
type ErrorCQE struct {
	UIdx           uint32
	ByteCount      uint32
	HWSyndrome     uint8
	HWSyndromeType uint8
	Vendor         uint8
	Syndrome       Syndrome
	Opcode         Opcode // of the send WQE
	QPN            uint32
	Counter        uint16
	OpOwn          uint8
}

// Put writes all 64 bytes of the completion to b.
func (e *ErrorCQE) Put(b []byte) {
	c := (*[CQESize]byte)(b)
	*c = [CQESize]byte{}
	put64(c[0x20:], uint64(e.UIdx)<<32)
	put64(c[0x28:], uint64(e.ByteCount))
	binary.BigEndian.PutUint32(c[0x34:],
		uint32(e.HWSyndrome)<<24|uint32(e.HWSyndromeType)<<16|uint32(e.Vendor)<<8|uint32(
			e.Syndrome))
	put64(c[0x38:], uint64(e.Opcode)<<56|uint64(e.QPN)<<32|uint64(e.Counter)<<16|uint64(e.OpOwn))
}

// SignCQE writes the signature, which devices write into error CQEs: the exclusive or of all other
// bytes but the last.
func SignCQE(c *[CQESize]byte) {
	c[0x3e] = 0
	for _, x := range c[:0x3e] {
		c[0x3e] ^= x
	}
}

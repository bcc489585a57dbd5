package mlx5

// Sizes of the parts of a WQE, in bytes.
const (
	CtrlSegSize      = 16
	EthSegSize       = 16
	DataSegSize      = 16
	InlineHeaderSize = 4
	DSSize           = 16
	BB               = 64
)

// MaxDS is the longest send WQE drivers use, in DS: 15 basic blocks. The field
// could say 63. The device's own limit (max_wqe_sz_sq) applies too.
const MaxDS = 60

// Bits of the last argument of PutCtrl (fm_ce_se).
const (
	CEOnError      = 0x00 // completion only if this WQE fails
	CEOnFirstError = 0x04 // completion only if it is the queue's first failure
	CEAlways       = 0x08
	CEEvent        = 0x0c // completion and event
	SESolicited    = 0x02
)

// BBs is the number of basic blocks a WQE of ds DS occupies.
func BBs(ds int) int { return (ds + 3) / 4 }

// PutCtrl writes the 16 bytes of a control segment: index is the producer
// counter at the WQE's first basic block, ds the length of the whole WQE.
// Reserved bytes and the immediate are zero, which newer cards insist on.
func PutCtrl(b []byte, op Opcode, opmod uint8, index uint16, sqn uint32, ds, fmCeSe uint8) {
	s := (*[CtrlSegSize]byte)(b)
	put64(s[0:8], uint64(opmod)<<56|uint64(index)<<40|uint64(op)<<32|uint64(sqn)<<8|uint64(ds))
	put64(s[8:16], uint64(fmCeSe)<<32)
}

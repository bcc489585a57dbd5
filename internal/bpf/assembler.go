package bpf

import "encoding/binary"

// Register names one of the machine's.
type Register uint8

// The registers. Programs begin with their context in R1 and end with their result in R0; a call
// leaves R6 to R9 as they are.
const (
	R0 Register = iota
	R1
	R2
	R3
	R4
	R5
	R6
	R7
	R8
	R9
	FramePointer
)

// instruction mirrors struct bpf_insn: 8 bytes.
type instruction struct {
	op       uint8
	dst, src Register
	offset   int16
	value    int32
}

// Assembler lists instructions, with jumps to labels further on.
type Assembler struct {
	list   []instruction
	labels map[string]int
	jumps  map[int]string
}

// NewAssembler returns one without instructions.
func NewAssembler() *Assembler {
	return &Assembler{labels: map[string]int{}, jumps: map[int]string{}}
}

// AppendOp adds an instruction.
func (a *Assembler) AppendOp(op uint8, dst, src Register, offset int16, value int32) {
	a.list = append(a.list, instruction{op, dst, src, offset, value})
}

// JumpTo adds a jump to a label further on.
func (a *Assembler) JumpTo(op uint8, dst, src Register, value int32, to string) {
	a.jumps[len(a.list)] = to
	a.AppendOp(op, dst, src, 0, value)
}

// Operation codes: class, operation, source (include/uapi/linux/bpf.h, bpf_common.h).
const (
	OpMove, OpMoveImmediate             = 0xbf, 0xb7
	OpAdd, OpAddImmediate               = 0x0f, 0x07
	OpAnd, OpAndImmediate               = 0x5f, 0x57
	OpShiftLeftImmediate                = 0x67
	OpShiftRightImmediate               = 0x77
	OpToBigEndian                       = 0xdc // of as many bits as the value says
	OpLoad8, OpLoad16, OpLoad32         = 0x71, 0x69, 0x61
	OpLoad64                            = 0x79
	OpLoadPacket8                       = 0x30 // of R6, from its byte of the value on, to R0
	OpStore8, OpStore16, OpStore32      = 0x73, 0x6b, 0x63
	OpAtomicAdd64                       = 0xdb // to memory
	OpLoadMap                           = 0x18 // two instructions, source register 1
	OpJump                              = 0x05
	OpJumpIfGreater                     = 0x2d
	OpJumpIfEqual, OpJumpIfNotEqual     = 0x1d, 0x5d
	OpJumpIfEqual32, OpJumpIfNotEqual32 = 0x16, 0x56 // with a value, of the lower half
	OpJumpIfEqualImmediate              = 0x15
	OpJumpIfNotEqualImmediate           = 0x55
	OpJumpIfSet                         = 0x45
	OpJumpIfLess                        = 0xa5
	OpCall, OpExit                      = 0x85, 0x95
)

// Numbers of the kernel's functions (enum bpf_func_id).
const (
	HelperMapLookup   = 1
	HelperRedirectMap = 51
)

// PlaceLabel names the instruction that comes next.
func (a *Assembler) PlaceLabel(name string) { a.labels[name] = len(a.list) }

// MoveRegister copies src to dst.
func (a *Assembler) MoveRegister(dst, src Register) { a.AppendOp(OpMove, dst, src, 0, 0) }

// SetValue makes dst v, all 64 bits of it: a negative one is extended.
func (a *Assembler) SetValue(dst Register, v int32) { a.AppendOp(OpMoveImmediate, dst, 0, 0, v) }

// AddRegister adds src to dst.
func (a *Assembler) AddRegister(dst, src Register) { a.AppendOp(OpAdd, dst, src, 0, 0) }

// AddValue adds v to dst.
func (a *Assembler) AddValue(dst Register, v int32) { a.AppendOp(OpAddImmediate, dst, 0, 0, v) }

// MaskValue leaves of dst the bits of v, which is extended to 64.
func (a *Assembler) MaskValue(dst Register, v int32) { a.AppendOp(OpAndImmediate, dst, 0, 0, v) }

// ShiftLeft shifts dst by v bits.
func (a *Assembler) ShiftLeft(dst Register, v int32) {
	a.AppendOp(OpShiftLeftImmediate, dst, 0, 0, v)
}

// LoadField loads what is so many bytes behind src, by one of the OpLoad codes.
func (a *Assembler) LoadField(op uint8, dst, src Register, at int16) {
	a.AppendOp(op, dst, src, at, 0)
}

// StoreField stores src so many bytes behind dst, by one of the OpStore codes.
func (a *Assembler) StoreField(op uint8, dst Register, at int16, src Register) {
	a.AppendOp(op, dst, src, at, 0)
}

// LoadMap makes dst the map with this descriptor, for a call.
func (a *Assembler) LoadMap(dst Register, fd int) {
	a.AppendOp(OpLoadMap, dst, 1, 0, int32(fd))
	a.AppendOp(0, 0, 0, 0, 0)
}

// CallHelper calls a function of the kernel's, whose arguments are in R1 to R5.
func (a *Assembler) CallHelper(helper int32) { a.AppendOp(OpCall, 0, 0, 0, helper) }

// EndProgram returns R0.
func (a *Assembler) EndProgram() { a.AppendOp(OpExit, 0, 0, 0, 0) }

// ToBytes returns the program as the kernel takes it.
func (a *Assembler) ToBytes() []byte {
	for at, to := range a.jumps {
		a.list[at].offset = int16(a.labels[to] - at - 1)
	}
	var b []byte
	for _, i := range a.list {
		b = append(b, i.op, uint8(i.dst)|uint8(i.src)<<4)
		b = binary.NativeEndian.AppendUint16(b, uint16(i.offset))
		b = binary.NativeEndian.AppendUint32(b, uint32(i.value))
	}
	return b
}

// InMemory returns a big-endian number as a load in the processor's byte order finds it.
func InMemory(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

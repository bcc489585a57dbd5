package mlx5

import "fmt"

// Opcode says what a send WQE does (linux include/linux/mlx5/device.h, MLX5_OPCODE_*).
type Opcode uint8

// Opcodes of an Ethernet send queue, and those of RDMA that a raw Ethernet queue must refuse.
const (
	OpNOP          Opcode = 0x00
	OpSendInv      Opcode = 0x01
	OpRDMAWrite    Opcode = 0x08
	OpRDMAWriteImm Opcode = 0x09
	OpSend         Opcode = 0x0a // one packet
	OpSendImm      Opcode = 0x0b
	// TCP segmentation; with OpModLegacyMPW several packets of one size
	OpLSO            Opcode = 0x0e
	OpWait           Opcode = 0x0f
	OpRDMARead       Opcode = 0x10
	OpAtomicCS       Opcode = 0x11
	OpAtomicFA       Opcode = 0x12
	OpAtomicMaskedCS Opcode = 0x14
	OpAtomicMaskedFA Opcode = 0x15
	OpSendEnable     Opcode = 0x17
	OpRecvEnable     Opcode = 0x16
	OpBindMW         Opcode = 0x18
	OpConfig         Opcode = 0x1f
	OpDump           Opcode = 0x23
	OpUMR            Opcode = 0x25
	OpTagMatching    Opcode = 0x28
	OpEnhancedMPW    Opcode = 0x29 // several packets in one WQE
	OpFlowTblAccess  Opcode = 0x2c
	OpAccessASO      Opcode = 0x2d
	OpMMO            Opcode = 0x2f
)

// OpModLegacyMPW turns OpLSO, as its opmod, into the multi-packet WQE of ConnectX-4 Lx.
const OpModLegacyMPW = 1

var opcodeNames = [...]string{
	OpNOP: "NOP", OpSendInv: "SEND_INVAL", OpRDMAWrite: "RDMA_WRITE",
	OpRDMAWriteImm: "RDMA_WRITE_IMM",
	OpSend:         "SEND", OpSendImm: "SEND_IMM", OpLSO: "LSO",
	OpWait: "WAIT", OpRDMARead: "RDMA_READ",
	OpAtomicCS: "ATOMIC_CS", OpAtomicFA: "ATOMIC_FA", OpAtomicMaskedCS: "ATOMIC_MASKED_CS",
	OpAtomicMaskedFA: "ATOMIC_MASKED_FA", OpSendEnable: "SEND_EN", OpRecvEnable: "RECV_EN",
	OpBindMW: "BIND_MW", OpConfig: "CONFIG", OpDump: "DUMP", OpUMR: "UMR",
	OpTagMatching: "TAG_MATCHING",
	OpEnhancedMPW: "ENHANCED_MPW", OpFlowTblAccess: "FLOW_TBL_ACCESS",
	OpAccessASO: "ACCESS_ASO", OpMMO: "MMO",
}

// String returns the name the manual uses.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) && opcodeNames[o] != "" {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// CQEOpcode says what completed (bits [7:4] of a CQE's last byte).
type CQEOpcode uint8

// Kinds of completion. Ethernet receive is CQERecv; drivers take the other receive forms alike.
const (
	CQEReq         CQEOpcode = 0 // send done
	CQERecvImmRDMA CQEOpcode = 1
	CQERecv        CQEOpcode = 2
	CQERecvImm     CQEOpcode = 3
	CQERecvInv     CQEOpcode = 4
	CQEResize      CQEOpcode = 5
	CQENoPacket    CQEOpcode = 6
	CQESigErr      CQEOpcode = 12
	CQEReqErr      CQEOpcode = 13 // a send failed
	CQERecvErr     CQEOpcode = 14 // a receive failed
	CQEInvalid     CQEOpcode = 15 // never written by the device: not a completion
)

var cqeOpcodeNames = [16]string{
	CQEReq: "REQ", CQERecvImmRDMA: "RESP_WR_IMM", CQERecv: "RESP_SEND", CQERecvImm: "RESP_SEND_IMM",
	CQERecvInv: "RESP_SEND_INV", CQEResize: "RESIZE_CQ",
	CQENoPacket: "NO_PACKET", CQESigErr: "SIG_ERR",
	CQEReqErr: "REQ_ERR", CQERecvErr: "RESP_ERR", CQEInvalid: "INVALID",
}

// String returns the name the manual uses.
func (o CQEOpcode) String() string {
	if int(o) < len(cqeOpcodeNames) && cqeOpcodeNames[o] != "" {
		return cqeOpcodeNames[o]
	}
	return fmt.Sprintf("cqe opcode %d", uint8(o))
}

// IsError reports whether the CQE is of the error form.
func (o CQEOpcode) IsError() bool { return o == CQEReqErr || o == CQERecvErr }

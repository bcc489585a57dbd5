package mlx5

import "fmt"

// Syndrome is the cause in an error CQE (linux include/linux/mlx5/device.h,
// MLX5_CQE_SYNDROME_*). It is an error: compare with errors.Is.
type Syndrome uint8

// Causes of failed work.
const (
	SynLocalLength Syndrome = 0x01 // received frame longer than the WQE; send beyond limits
	SynLocalQPOp   Syndrome = 0x02 // malformed WQE
	// lkey unknown, of another protection domain, or address outside the region
	SynLocalProtection Syndrome = 0x04
	SynFlushed         Syndrome = 0x05 // not executed: the queue was in error already
	SynMWBind          Syndrome = 0x06
	SynBadResponse     Syndrome = 0x10
	SynLocalAccess     Syndrome = 0x11
	SynRemoteInvalid   Syndrome = 0x12
	SynRemoteAccess    Syndrome = 0x13
	SynRemoteOp        Syndrome = 0x14
	SynRetryExceeded   Syndrome = 0x15
	SynRNRExceeded     Syndrome = 0x16
	SynRemoteAborted   Syndrome = 0x22
)

var syndromeNames = [...]string{
	SynLocalLength: "local length error", SynLocalQPOp: "local QP operation error",
	SynLocalProtection: "local protection error", SynFlushed: "work request flushed",
	SynMWBind: "memory window bind error", SynBadResponse: "bad response",
	SynLocalAccess:   "local access error",
	SynRemoteInvalid: "remote invalid request", SynRemoteAccess: "remote access error",
	SynRemoteOp: "remote operation error", SynRetryExceeded: "transport retry counter exceeded",
	SynRNRExceeded: "RNR retry counter exceeded", SynRemoteAborted: "remote aborted",
}

// String returns the name of the cause.
func (s Syndrome) String() string {
	if int(s) < len(syndromeNames) && syndromeNames[s] != "" {
		return syndromeNames[s]
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

// Error is String, so that a Syndrome can be wrapped.
func (s Syndrome) Error() string { return s.String() }

// Syndromes lists every named cause, in ascending order.
func Syndromes() []Syndrome {
	return []Syndrome{
		SynLocalLength, SynLocalQPOp, SynLocalProtection, SynFlushed, SynMWBind,
		SynBadResponse, SynLocalAccess,
		SynRemoteInvalid, SynRemoteAccess, SynRemoteOp, SynRetryExceeded,
		SynRNRExceeded, SynRemoteAborted,
	}
}

// Vendor syndromes, the second opinion of an error CQE. They differ between
// cards and firmware: for logs and for a model, never for decisions.
const (
	VendorRxData        = 0x32 // receive data write, protection domain violation
	VendorRxTooSmall    = 0xd3 // receive WQE size
	VendorGatherPCIe    = 0x51
	VendorGatherPD      = 0x52 // payload read, protection domain violation
	VendorGatherAccess  = 0x53 // payload read, access by the key refused
	VendorGatherLength  = 0x54 // payload read, outside the region
	VendorWQEFormat     = 0x68
	VendorMsgTooLong    = 0x69
	VendorDSTooSmall    = 0x6e
	VendorInlineTooLong = 0x6f
	VendorOpcode        = 0x71
	VendorFlushed       = 0xf9
)

package tcpfix

import "github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"

// Behaviour: netstack answers a SYN with a SYN cookie where the backlog is full, without window
// scale and SACK, and a copy of the SYN with both where there is room again.
// The peer has the first answer by then, and ends the handshake by the cookie; netstack takes that
// for the end of the second one (transport/tcp/connect.go synRcvdState) and scales its windows,
// which the peer reads as 2^14 times too small at most, and stands still.
//
// Fix: of the options in a copy of a SYN those are taken out that our SYN-ACK did not have.
//
// Not reported upstream. No longer needed when the row "a copy of a SYN gets no options that its
// SYN cookie had not" of tests/tcp passes without it.

// optionSet is kinds of TCP options, the bit of each set. Kinds of 32 and more are not in it.
type optionSet uint32

// negotiated are the options that count only if both SYNs have them (RFC 7323, RFC 2018).
const negotiated optionSet = 1<<optWindowScale | 1<<optSACKPermitted | 1<<hdr.OptTimestamp

const (
	optWindowScale   = 3 // RFC 7323
	optSACKPermitted = 4 // RFC 2018
)

// optionsIn returns the options of a TCP header.
func optionsIn(tcp []byte) (set optionSet) {
	eachOption(tcp, func(o []byte) { set |= 1 << o[0] })
	return set
}

// removeOptions overwrites options of a TCP header, whose checksum is then wrong.
func removeOptions(tcp []byte, set optionSet) {
	eachOption(tcp, func(o []byte) {
		if set&(1<<o[0]) != 0 {
			for i := range o {
				o[i] = hdr.OptNop
			}
		}
	})
}

// eachOption calls do for each option of a TCP header, up to one that does not fit.
func eachOption(tcp []byte, do func(option []byte)) {
	rest := tcp[hdr.TCPLen:max(hdr.TCPLen, min(int(tcp[12]>>4)*4, len(tcp)))]
	for len(rest) > 0 && rest[0] != hdr.OptEnd {
		if rest[0] == hdr.OptNop {
			rest = rest[1:]
			continue
		}
		if len(rest) < 2 || rest[1] < 2 || int(rest[1]) > len(rest) {
			return
		}
		option := rest[:rest[1]]
		rest = rest[len(option):]
		do(option)
	}
}

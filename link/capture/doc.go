// Package capture records frames of a running link for Wireshark and its kin.
//
// A [Tap] is one capture. The link looks for taps once per batch of received frames and once per
// packet sent; while there are none that is all it costs. With a tap the owner of a queue copies
// what the tap wants into a [Batch] of its own and commits it into the tap's buffer. Nobody waits:
// what does not fit is counted, and the count is in the file. [Tap.WriteTo] writes the pcapng file
// (draft-ietf-opsawg-pcapng) and is the only reader.
//
// Received frames are recorded as the NIC delivered them, those that the link drops with the
// reason. Sent frames are recorded when they have been posted, and those that the link refuses with
// the reason; a segment that the NIC is to cut is one frame, or is cut as the NIC does it, see
// [Options.Wire]. A [Splitter] takes such a file apart into its blocks.
package capture

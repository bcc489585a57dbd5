// Package delack delays pure ACKs in front of a link. A Coalescer holds at most one ACK per flow,
// for a time that RFC 1122 and RFC 5681 allow, and leaves it out where the flow's next segment says
// the same and more.
package delack

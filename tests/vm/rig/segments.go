package rig

// SegmentPattern returns the n bytes that the guest sends as datagrams ("segments").
func SegmentPattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

package hoststack

// byDesign has the reason of every behaviour that is meant to differ from the kernel's. An entry whose
// behaviour does not differ fails the test.
var byDesign = map[string]string{
	"udp data/an answer comes from the address that was asked": "the kernel answers from its first address, which the client that asked the second one does not know; we answer from the second",
}

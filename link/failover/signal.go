package failover

// Signal is what the kernel says unasked about devices.
type Signal struct {
	// Gone: a device is being removed. Else one may have come.
	Gone bool
	// Name is the RDMA device's, Ifindex the netdev's number; one of them is set if Gone is.
	Name    string
	Ifindex int
}

package failover

// Signal holds what the kernel says unasked about devices.
type Signal struct {
	// Gone: a device is being removed. Else one may have come.
	Gone bool
	// Moved: the netdev goes to another network namespace. Its device stays as it is: an RDMA
	// device is not bound to the namespace of its netdev.
	Moved bool
	// Name is the RDMA device's, Ifindex the netdev's number; one of them is set if Gone is,
	// Ifindex if Moved is.
	Name    string
	Ifindex int
}

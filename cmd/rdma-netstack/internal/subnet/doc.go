// Package subnet finds IP subnets that nothing on this machine uses, for a network that the machine
// is given for a while.
//
//	unlock, err := subnet.Lock()        // nobody else looks until what was found is in place
//	uses, err := subnet.InUse("slice0")
//	p, err := subnet.Free4(uses)
//
// Everything is about the network namespace of the calling thread.
package subnet

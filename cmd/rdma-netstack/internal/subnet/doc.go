// Package subnet finds IP subnets that nothing on this machine uses, for a temporary network of the
// machine.
//
//	unlock, err := subnet.Lock()        // nobody else looks until what was found is in place
//	uses, err := subnet.InUse("slice0")
//	p, err := subnet.Free4(uses)
//
// All functions work on the network namespace of the calling thread.
package subnet

// Package guest has the tests of the VM that run in the VM: its kernel makes each type of
// link that tests of other packages need.
package guest

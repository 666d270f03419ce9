// Package install installs the CNI plugin and its network configuration in the directories
// of the container runtime. It also removes them, and the daemon's state.
package install

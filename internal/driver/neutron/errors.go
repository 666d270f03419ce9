package neutron

import (
	"errors"
	"fmt"

	"fairlead.dev/fairlead/internal/driver"
	"fairlead.dev/fairlead/internal/openstack/cloud"
)

// translations have the error of the contract for each error of the cloud. The text
// describes the cause and the remedy.
var translations = []struct {
	cloud, driver error
	text          string
}{
	{cloud.ErrQuota, driver.ErrExhausted, "a quota of the project is used up"},
	{cloud.ErrFull, driver.ErrExhausted, "no address is left in the subnet: add a subnet to the network, or delete ports"},
	{cloud.ErrTaken, driver.ErrConflict, "the requested address or MAC is that of another port"},
	{cloud.ErrNotFound, driver.ErrNotFound, "it does not exist, or the project of the credentials may not see it"},
	{cloud.ErrForbidden, driver.ErrUnavailable, "the credentials of the controller may not do this: the operator's guide lists the rights"},
	{cloud.ErrInvalid, driver.ErrInvalid, "OpenStack refuses the request"},
	{cloud.ErrLimit, driver.ErrExhausted, "a limit of the cloud is reached"},
	{cloud.ErrInUse, driver.ErrUnavailable, "others still use it"},
	{cloud.ErrChanged, driver.ErrUnavailable, "it was changed by another at this moment"},
}

// translate returns an error of the driver contract for one of the cloud.
func translate(err error) error {
	if err == nil || driver.Result(err) != "Unknown" {
		return err
	}
	for _, t := range translations {
		if errors.Is(err, t.cloud) {
			return fmt.Errorf("%w: %s: %w", t.driver, t.text, err)
		}
	}
	return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A stand-in for the part of NVIDIA's vGPU host driver that libvirt, QEMU and gpuvm see: a VFIO variant driver whose virtual
 * functions VFIO opens only once they have a type. Nothing of it is NVIDIA's. It drives vdgx-vgpu (standin/vdgx-devices.c)
 * and its virtual functions, and vdgx-h100 as a card that makes mediated devices (mtty.c).
 *
 * A card has 8 units; a type takes as many as its number says: 1, 2, 4, 8. All vGPUs of a card have one type unless the
 * parameter `mixed` is set. Below virtfnN/nvidia:
 *   creatable_vgpu_types  types that fit now, for a function that has none
 *   current_vgpu_type     0: none. -EBUSY: it has another one; -ENOSPC: it does not fit; -EPERM: it is open
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/vfio_pci_core.h>

enum { UNITS = 8 };

struct vgpu {
	struct vfio_pci_core_device core;
	struct list_head list;
	unsigned int type;
	bool open;
};

static bool mixed;
module_param(mixed, bool, 0644);
static LIST_HEAD(all);
static DEFINE_MUTEX(lock);

static struct vgpu *vgpu_of(struct device *dev)
{
	/* vfio_pci_core wants its own pointer there. */
	return container_of((struct vfio_pci_core_device *)dev_get_drvdata(dev), struct vgpu, core);
}

/* Whether a type fits beside those of the same card. */
static bool fits(struct vgpu *vgpu, unsigned int type)
{
	unsigned int used = type;
	struct vgpu *other;

	if (type > UNITS || !is_power_of_2(type))
		return false;
	list_for_each_entry(other, &all, list) {
		if (pci_physfn(other->core.pdev) != pci_physfn(vgpu->core.pdev) || !other->type)
			continue;
		used += other->type;
		if (!mixed && other->type != type)
			return false;
	}
	return used <= UNITS;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct vgpu *vgpu = vgpu_of(dev);
	ssize_t n = sysfs_emit(buf, "ID    : vGPU Name\n");

	mutex_lock(&lock);
	for (unsigned int type = 1; type <= UNITS && !vgpu->type; type *= 2)
		if (fits(vgpu, type))
			n += sysfs_emit_at(buf, n, "%-5u : NVIDIA STANDIN-%uC\n", type, type);
	mutex_unlock(&lock);
	return n;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", vgpu_of(dev)->type);
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t count)
{
	struct vgpu *vgpu = vgpu_of(dev);
	unsigned int type;
	int ret = kstrtouint(buf, 0, &type);

	if (ret)
		return ret;
	mutex_lock(&lock);
	if (vgpu->open)
		ret = -EPERM;
	else if (type && vgpu->type)
		ret = -EBUSY;
	else if (type && !fits(vgpu, type))
		ret = -ENOSPC;
	else
		vgpu->type = type;
	mutex_unlock(&lock);
	return ret ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static umode_t is_visible(struct kobject *kobj, struct attribute *attr, int n)
{
	return to_pci_dev(kobj_to_dev(kobj))->is_virtfn ? attr->mode : 0;
}
static struct attribute *attrs[] = { &dev_attr_creatable_vgpu_types.attr, &dev_attr_current_vgpu_type.attr, NULL };
static const struct attribute_group group = { .name = "nvidia", .attrs = attrs, .is_visible = is_visible };
static const struct attribute_group *groups[] = { &group, NULL };

static int vgpu_open(struct vfio_device *vdev)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, core.vdev);
	int ret;

	mutex_lock(&lock);
	ret = vgpu->type ? vfio_pci_core_enable(&vgpu->core) : -ENODEV;
	vgpu->open = !ret;
	mutex_unlock(&lock);
	if (!ret)
		vfio_pci_core_finish_enable(&vgpu->core);
	return ret;
}

static void vgpu_close(struct vfio_device *vdev)
{
	struct vgpu *vgpu = container_of(vdev, struct vgpu, core.vdev);

	vfio_pci_core_close_device(vdev);
	mutex_lock(&lock);
	vgpu->open = false;
	mutex_unlock(&lock);
}

static const struct vfio_device_ops ops = {
	.name = "nvidia-vgpu-standin",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = vgpu_open,
	.close_device = vgpu_close,
	.ioctl = vfio_pci_core_ioctl,
#ifdef HAS_REGION_INFO_CAPS
	.get_region_info_caps = vfio_pci_ioctl_get_region_info,
#endif
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
#ifdef HAS_MATCH_TOKEN
	.match_token_uuid = vfio_pci_core_match_token_uuid,
#endif
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vgpu *vgpu;
	int ret;

	if (!pdev->is_virtfn)
		return 0;
	vgpu = vfio_alloc_device(vgpu, core.vdev, &pdev->dev, &ops);
	if (IS_ERR(vgpu))
		return PTR_ERR(vgpu);
	dev_set_drvdata(&pdev->dev, &vgpu->core);
	ret = vfio_pci_core_register_device(&vgpu->core);
	if (ret) {
		vfio_put_device(&vgpu->core.vdev);
		return ret;
	}
	mutex_lock(&lock);
	list_add(&vgpu->list, &all);
	mutex_unlock(&lock);
	return 0;
}

static void remove(struct pci_dev *pdev)
{
	struct vgpu *vgpu;

	if (!pdev->is_virtfn) {
		pci_disable_sriov(pdev);
		return;
	}
	vgpu = vgpu_of(&pdev->dev);
	mutex_lock(&lock);
	list_del(&vgpu->list);
	mutex_unlock(&lock);
	vfio_pci_core_unregister_device(&vgpu->core);
	vfio_put_device(&vgpu->core.vdev);
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(0x10de, 0x2335) }, { PCI_DEVICE(0x10de, 0x10ca) }, { PCI_DEVICE(0x10de, 0x2330) }, { }
};
MODULE_DEVICE_TABLE(pci, ids);

static struct pci_driver vgpu_driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.sriov_configure = pci_sriov_configure_simple,
	.dev_groups = groups,
	.driver_managed_dma = true,
};
module_pci_driver(vgpu_driver);
MODULE_DESCRIPTION("Stand-in for NVIDIA's vGPU host driver, for the tests of gpuvm");
MODULE_LICENSE("GPL");
